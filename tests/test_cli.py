"""The command line as a user meets it: its time, its output, its exit codes."""

import errno
import json
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from asyncgrpo import command_reference
from asyncgrpo.cli import app

ROOT = Path(command_reference.__file__).parent.parent
RECIPE = ROOT / "tests" / "end_to_end" / "sums.yaml"
COMMANDS = ("train", "serve", "resume", "validate", "diagnose")
LATER = ("doctor", "plan", "report", "watch", "show", "replay", "eval", "explain", "init", "router")


@dataclass(frozen=True)
class Told:
    """The output and the exit code of a command."""

    returncode: int
    stdout: str
    stderr: str


def asyncgrpo(*arguments: object, env: dict[str, str] | None = None) -> Told:
    """The command in this process, which is a second faster than in its own."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], prog_name="asyncgrpo", env=env)
    return Told(result.exit_code, result.stdout, result.stderr)


def own_process(*arguments: object) -> Told:
    command = [sys.executable, "-m", "asyncgrpo", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Told(done.returncode, done.stdout, done.stderr)


def test_help_is_fast_and_names_what_there_is():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = own_process("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert told.returncode == 0
    assert cpu_s <= 0.5
    listed = told.stdout.partition("Commands:")[2]
    assert all(f"  {command} " in listed for command in COMMANDS)
    assert not [command for command in LATER if f"  {command} " in listed]


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("from asyncgrpo.cli import app", id="the command line"),
        pytest.param("from asyncgrpo.launch import commands", id="the launcher"),
    ],
)
def test_neither_torch_nor_transformers_nor_vllm_is_imported(code: str):
    source = (
        f"import sys; {code}; "
        "print([m for m in ('torch', 'transformers', 'vllm') if m in sys.modules])"
    )
    told = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "[]"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_help_has_an_example(command: str):
    told = asyncgrpo(command, "--help")
    assert told.returncode == 0
    assert f"Example: asyncgrpo {command} " in told.stdout


def test_the_version_is_the_packages():
    told = asyncgrpo("--version")
    assert told.returncode == 0
    assert told.stdout.startswith("asyncgrpo 0.")


@pytest.mark.parametrize(
    "arguments",
    [("fly",), ("train",), ("train", RECIPE, "--fast"), ("resume", "x", "--checkpoint", "y")],
)
def test_wrong_usage_exits_with_2(arguments: tuple):
    assert asyncgrpo(*arguments).returncode == 2


@pytest.mark.parametrize("command", ["train", "serve", "resume", "validate"])
def test_a_key_written_as_an_option_is_told_how_to_write_it(command: str):
    for option in (("--max-steps", 5), ("--trainer.max_steps=5",)):
        told = asyncgrpo(command, RECIPE, *option)
        assert told.returncode == 2
        assert "keys of the recipe have no dashes: trainer.max_steps=VALUE" in told.stderr


def test_a_wrong_recipe_is_one_message_without_a_traceback(tmp_path: Path):
    recipe = tmp_path / "x.yaml"
    recipe.write_text(RECIPE.read_text().replace("max_staleness", "max_stalenes"))
    told = own_process("validate", recipe)
    assert told.returncode == 2
    assert "did you mean `max_staleness`?" in told.stderr
    assert "Traceback" not in told.stderr + told.stdout
    assert "Traceback" in own_process("validate", recipe, "--debug").stderr


def test_each_error_of_a_recipe_is_marked_as_one():
    told = asyncgrpo("validate", RECIPE, "trainer.max_step=1", "rollout.temperature=-1")
    errors = told.stderr.splitlines()
    assert len(errors) == 2
    assert all(line.startswith("error: ") for line in errors)


def test_what_keeps_a_sound_recipe_from_starting_here_is_told():
    told = asyncgrpo("validate", RECIPE, "server.api_key_env=A_KEY_THAT_NOBODY_SET")
    assert told.returncode == 0
    assert "no errors" in told.stdout
    assert told.stderr.startswith("would not start here: server.api_key_env: ")


def test_a_full_disk_is_one_message(monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device", "runs/x/recipe.yaml")

    monkeypatch.setattr("asyncgrpo.launch.commands.train", full)
    told = asyncgrpo("train", RECIPE)
    assert told.returncode == 1
    assert told.stderr.startswith("error: runs/x/recipe.yaml: No space left on device; make room")
    assert "Traceback" not in told.stderr


def test_a_sound_recipe_is_validated_with_its_derived_values():
    told = asyncgrpo("validate", RECIPE)
    assert told.returncode == 0, told.stderr
    assert "no errors" in told.stdout
    assert "sync.backend" in told.stdout


def test_validate_tries_the_users_code_on_rows():
    told = asyncgrpo("validate", RECIPE, "--try", "--rows", 1, "--completion", "it is 12")
    assert told.returncode == 0, told.stderr
    assert "tried on 1 row; no model was asked" in told.stdout
    assert "boxed_sum" in told.stdout
    assert "it is 12" in told.stdout
    assert "note:" not in told.stdout  # the right answer in a box earns more than nothing


def test_an_error_of_the_users_code_on_a_row_is_an_error_of_the_recipe(tmp_path: Path):
    (tmp_path / "mine.py").write_text("def reward(completions, **_):\n    return [1]\n")
    rewards = f"rollout.rewards=[{tmp_path / 'mine.py'}:reward]"
    told = asyncgrpo("validate", RECIPE, rewards, "--try", "--rows", 2)
    assert told.returncode == 2
    errors = [line for line in told.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2
    assert "reward `reward` returned 1 rewards; expected a list of 3 numbers" in errors[0]


def test_a_completion_to_try_needs_try():
    told = asyncgrpo("validate", RECIPE, "--completion", "x")
    assert told.returncode == 2
    assert "add --try" in told.stderr


def test_a_dry_run_prints_every_process_and_starts_nothing(tmp_path: Path):
    told = asyncgrpo(
        "train",
        RECIPE,
        f"run.dir={tmp_path / 'run'}",
        "server.api_key_env=MY_KEY",
        "--dry-run",
        env={"MY_KEY": "sesame"},
    )
    assert told.returncode == 0, told.stderr
    for shown in (
        "# server-0",
        "vllm.entrypoints.openai.api_server",
        "# worker, after server-0",
        "# trainer, after server-0",
        "OMP_NUM_THREADS=",
        "VLLM_API_KEY='********'",
        "max_staleness: 2",
    ):
        assert shown in told.stdout, shown
    assert "sesame" not in told.stdout
    assert not (tmp_path / "run").exists()


def test_a_dry_run_for_another_machine_says_why_it_would_not_start_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Importing the worker hides the GPUs from the process, as a test before this one may have.
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    overrides = (f"run.dir={tmp_path / 'run'}", "server.devices=[0]", "trainer.devices=[97]")
    told = asyncgrpo("train", RECIPE, *overrides, "--dry-run")
    assert told.returncode == 0, told.stderr
    assert "CUDA_VISIBLE_DEVICES=97" in told.stdout
    assert "would not start here: trainer.devices: got [97]" in told.stderr
    assert asyncgrpo("train", RECIPE, *overrides).returncode == 2


def test_a_directory_with_a_run_is_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    told = asyncgrpo("train", RECIPE, f"run.dir={tmp_path}")
    assert told.returncode == 2
    assert f"asyncgrpo resume {tmp_path}" in told.stderr


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A run directory with a checkpoint at its last step, and two windows of metrics."""
    run = tmp_path / "run"
    checkpoint = run / "checkpoints" / "step-000005"
    checkpoint.mkdir(parents=True)
    state = {
        "format": 1,
        "step": 5,
        "policy_version": 5,
        "epoch": 0,
        "seed": 42,
        "num_prompts": 100,
        "prompt_index": 40,
        "resolved": [[0, 40]],
        "partial": {},
        "dropped": {},
        "rng": {"seed": 42, "step": 5},
    }
    (checkpoint / "rollout_state.json").write_text(json.dumps(state))
    trainer = {"step": 5, "num_tokens": 99, "loss_scale": 1.0, "optimizer": "sgd", "scalars": {}}
    (checkpoint / "trainer.json").write_text(json.dumps(trainer))
    (checkpoint / "complete.json").write_text('{"files": {}}')
    source = (
        "import sys; from pathlib import Path\n"
        "from asyncgrpo.config import Facts, load_recipe, resolve, write_resolved\n"
        "recipe = load_recipe(sys.argv[1], [f'run.dir={sys.argv[2]}'])\n"
        "write_resolved(Path(sys.argv[2]) / 'config.json', *resolve(recipe, Facts()))"
    )
    subprocess.run([sys.executable, "-c", source, str(RECIPE), str(run)], check=True)
    (run / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "reward": 0.7}\n')
    return run


def test_a_run_at_its_end_says_so_and_trains_nothing(finished: Path):
    told = asyncgrpo("resume", finished)
    assert told.returncode == 0, told.stderr
    assert "has reached its end, step 5 of trainer.max_steps 5: nothing to train" in told.stdout
    assert "trainer.max_steps=10" in told.stdout
    assert not (finished / "logs").exists()


def test_a_checkpoint_that_is_not_there_is_told_with_those_that_are(finished: Path):
    told = asyncgrpo("resume", finished, "--checkpoint", 3)
    assert told.returncode == 2
    assert "no checkpoint of step 3; it has: 5" in told.stderr


def test_what_is_no_run_cannot_be_resumed(tmp_path: Path):
    told = asyncgrpo("resume", tmp_path)
    assert told.returncode == 2
    assert "has no config.json" in told.stderr


@pytest.mark.parametrize("arguments", [("metrics",), ()])
def test_diagnose_takes_a_directory_or_a_file(finished: Path, arguments: tuple):
    for path in (finished, finished / "metrics.jsonl"):
        told = asyncgrpo("diagnose", *arguments, path)
        assert told.returncode == 0, told.stderr
        assert "log windows: got 2" in told.stdout


def test_diagnose_speaks_json(finished: Path):
    told = asyncgrpo("diagnose", "--json", finished)
    assert json.loads(told.stdout)["verdict"] == "unknown"


@pytest.mark.parametrize("arguments", [("no-such-path",), ("a", "b"), ("metrics", "a", "b")])
def test_diagnose_says_what_it_cannot_read(tmp_path: Path, monkeypatch, arguments: tuple):
    monkeypatch.chdir(tmp_path)
    told = asyncgrpo("diagnose", *arguments)
    assert told.returncode == 2
    assert told.stderr.startswith("error: ")


def test_the_page_is_up_to_date():
    command = "python -m asyncgrpo.command_reference > docs/commands.md"
    written = (ROOT / "docs" / "commands.md").read_text()
    assert written == command_reference.page(), f"run: {command}"
