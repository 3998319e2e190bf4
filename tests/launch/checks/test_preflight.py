"""Problems found before anything starts, without importing the checked code."""

import json
import socket
import sys
from pathlib import Path

import pytest

from asyncgrpo.config import Config, Facts, derive
from asyncgrpo.errors import ConfigError
from asyncgrpo.launch import machine
from asyncgrpo.launch.checks import import_paths, preflight, this_machine


def configuration(folder: Path, port: int = 1, **sections) -> Config:
    tree = {"model": {"name_or_path": "org/model"}, "run": {"dir": str(folder / "run")}}
    facts = Facts(model_max_positions=512, server_port=port)
    return derive(Config.model_validate(tree | sections), facts).config


@pytest.fixture
def package(tmp_path: Path, monkeypatch) -> Path:
    """A package on the path whose modules end the process when imported."""
    package = tmp_path / "bomb_package"
    (package / "inner").mkdir(parents=True)
    for file in ("__init__.py", "rewards.py", "inner/__init__.py", "inner/deep.py"):
        (package / file).write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    return package


@pytest.mark.parametrize(
    ("name", "exists"),
    [
        ("bomb_package", True),
        ("bomb_package.rewards", True),
        ("bomb_package.inner.deep", True),
        ("bomb_package.missing", False),
        ("bomb_package.rewards.deeper", False),
        ("no_such_package_anywhere", False),
        ("json.decoder", True),
    ],
)
def test_modules_are_found_without_running_them(package: Path, name: str, exists: bool):
    assert import_paths.module_exists(name) is exists


def test_a_built_in_reward_that_is_none_is_told_with_those_there_are(tmp_path: Path):
    config = configuration(tmp_path, rollout={"rewards": ["asyncgrpo.rewards:acuracy_reward"]})
    with pytest.raises(ConfigError, match=r"rewards\[0\]: no reward `acuracy_reward` .* accuracy"):
        preflight.check_inputs(config)


def test_every_problem_is_told_at_once(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = configuration(
            tmp_path,
            port,
            rollout={"rewards": ["no_such_package_anywhere.rewards:f"]},
            server={"python": str(tmp_path / "no-python")},
        )
        with pytest.raises(ConfigError) as error:
            preflight.check(config, launch_server=True)
    text = str(error.value)
    assert "rollout.rewards[0]: no module `no_such_package_anywhere.rewards`" in text
    assert f"server.port: 127.0.0.1:{port} is in use" in text
    assert "server.python" in text
    assert "cannot import vllm and asyncgrpo" in text


def test_a_module_in_the_working_directory_is_found_as_the_worker_finds_it(
    tmp_path: Path, monkeypatch
):
    (tmp_path / "my_own_rewards.py").write_text("def f(completions): ...")
    rollout = {"rewards": ["my_own_rewards:f"], "loop": "my_own_loops:Loop"}
    config = configuration(tmp_path, rollout=rollout)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        preflight.check(config, launch_server=False)
    assert str(error.value).startswith("rollout.loop: no module `my_own_loops`")
    (tmp_path / "my_own_loops").mkdir()
    preflight.check(config, launch_server=False)


def test_a_name_that_a_module_has_not_is_told_without_running_it(package: Path, tmp_path: Path):
    bomb = "raise SystemExit('imported')\n"
    (package / "rewards.py").write_text(f"{bomb}def right(completions): ...")
    (package / "__init__.py").write_text(f"{bomb}from .inner import deep")
    (package / "lazy.py").write_text(f"{bomb}def __getattr__(name): ...")
    rollout = {
        "rewards": ["bomb_package.rewards:rigth", "bomb_package.rewards:right"],
        "tools": ["bomb_package:deep", "bomb_package:inner.deep", "bomb_package.lazy:f"],
        "loop": "bomb_package.rewards:Loop",
    }
    with pytest.raises(ConfigError) as error:
        preflight.check_inputs(configuration(tmp_path, rollout=rollout))
    first, second = str(error.value).splitlines()
    file = package / "rewards.py"
    assert first == f"rollout.rewards[0]: {file} defines no `rigth`; did you mean `right`?"
    assert second == f"rollout.loop: {file} defines no `Loop`"


def test_a_loop_that_is_no_subclass_is_told(package: Path, tmp_path: Path):
    (package / "rewards.py").write_text("raise SystemExit('imported')\nclass Loop: ...")
    config = configuration(tmp_path, rollout={"loop": "bomb_package.rewards:Loop"})
    with pytest.raises(ConfigError, match=r"^rollout\.loop: `Loop` is a class without that base"):
        preflight.check_inputs(config)


def test_modules_of_tools_and_environments_are_looked_for_too(tmp_path: Path):
    rollout = {
        "rewards": ["asyncgrpo.rewards:accuracy_reward"],
        "tools": ["math:sqrt", "no_such_tools:search"],
        "environments": {"game": "no_such_games:Chess"},
    }
    with pytest.raises(ConfigError) as error:
        preflight.check_inputs(configuration(tmp_path, rollout=rollout))
    first, second = str(error.value).splitlines()
    assert first.startswith("rollout.tools[1]: no module `no_such_tools`")
    assert second.startswith("rollout.environments.game: no module `no_such_games`")
    rollout |= {"tools": [], "environments": "no_such_games:Chess"}
    with pytest.raises(ConfigError, match=r"^rollout\.environments: no module `no_such_games`"):
        preflight.check_inputs(configuration(tmp_path, rollout=rollout))


def test_an_api_key_that_is_not_set_is_told_before_the_start(tmp_path: Path, monkeypatch):
    config = configuration(tmp_path, server={"api_key_env": "OUR_KEY"})
    with pytest.raises(ConfigError, match=r"server\.api_key_env: .*OUR_KEY is not set"):
        preflight.check(config, launch_server=False)
    monkeypatch.setenv("OUR_KEY", "sesame")
    preflight.check(config, launch_server=False)


def test_a_run_with_servers_elsewhere_needs_neither_vllm_nor_a_port(tmp_path: Path):
    config = configuration(tmp_path, server={"python": str(tmp_path / "no-python")})
    preflight.check(config, launch_server=False)


def test_devices_that_are_not_there_are_told(tmp_path: Path, monkeypatch):
    config = configuration(tmp_path, server={"devices": [0]}, trainer={"devices": [1, 7]})
    monkeypatch.setattr(this_machine, "cuda_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"trainer\.devices: got \[1, 7\], .* GPUs 0 to 1"):
        preflight.check(config, launch_server=False)
    monkeypatch.setattr(this_machine, "cuda_count", lambda: 0)
    with pytest.raises(ConfigError, match=r"server\.devices: got \[0\], .* has no GPU"):
        preflight.check(config, launch_server=True)


def test_devices_that_are_there_are_fine(tmp_path: Path, monkeypatch):
    config = configuration(tmp_path, server={"devices": [0]}, trainer={"devices": [1]})
    monkeypatch.setattr(this_machine, "cuda_count", lambda: 2)
    preflight.check(config, launch_server=False)


def test_flash_attention_without_its_package_is_told_with_the_extra_that_has_it(
    tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(this_machine, "cuda_count", lambda: 1)
    monkeypatch.setattr(this_machine, "FLASH_PACKAGES", ("no_such_package_anywhere",))
    model = {"name_or_path": "org/model", "attn_backend": "flash_attn"}
    config = configuration(tmp_path, trainer={"devices": [0]}, model=model)
    with pytest.raises(ConfigError, match=r"attn_backend: .*flash-attn is not installed.*\[gpu\]"):
        preflight.check(config, launch_server=False)
    monkeypatch.setattr(this_machine, "FLASH_PACKAGES", ("json",))
    preflight.check(config, launch_server=False)


@pytest.mark.parametrize("text", [{}, {"text_config": {"attn_logit_softcapping": 50.0}}])
def test_varlen_for_a_model_with_soft_capped_attention_is_told_before_it_loads(
    tmp_path: Path, text: dict
):
    (tmp_path / "config.json").write_text(json.dumps(text or {"attn_logit_softcapping": 50.0}))
    for file in ("model.bin", "tokenizer.json", "chat_template.jinja"):
        (tmp_path / file).write_text("")
    model = {"name_or_path": str(tmp_path), "attn_backend": "varlen"}
    with pytest.raises(ConfigError, match=r"got varlen, and .* scores at 50, .* use auto, sdpa or"):
        preflight.check_inputs(configuration(tmp_path, model=model))
    preflight.check_inputs(configuration(tmp_path, model=model | {"attn_backend": "flash_attn"}))
    (tmp_path / "config.json").write_text(json.dumps({"attn_logit_softcapping": None}))
    preflight.check_inputs(configuration(tmp_path, model=model))


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"rollout": {"top_k": 33}}, r"rollout\.top_k"),
        ({"loss": {"num_sampler_logprobs": 33}}, r"loss\.num_sampler_logprobs"),
    ],
)
def test_more_tokens_than_the_model_knows_are_refused(tmp_path: Path, sections: dict, key: str):
    for file in ("model.bin", "tokenizer.json", "chat_template.jinja"):
        (tmp_path / file).write_text("")
    model = {"name_or_path": str(tmp_path)}
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 32}))
    with pytest.raises(
        ConfigError, match=rf"{key}: got 33, and .* has 32 tokens; expected at most"
    ):
        preflight.check_inputs(configuration(tmp_path, model=model, **sections))
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 33}}))
    preflight.check_inputs(configuration(tmp_path, model=model, **sections))


def test_environments_that_a_column_chooses_need_the_column(tmp_path: Path):
    (tmp_path / "games.py").write_text("class Game:\n    def reset(self):\n        return 'go'\n")
    rows, environments = tmp_path / "rows.jsonl", {"game": f"{tmp_path}/games.py:Game"}
    rows.write_text('{"level": 1, "answer": "2"}\n')
    sections = {"data": {"path": str(rows)}, "rollout": {"environments": environments}}
    with pytest.raises(ConfigError, match=r"column `environment`, and .* has `level`, `answer`"):
        preflight.check_inputs(configuration(tmp_path, **sections))
    rows.write_text('{"level": 1, "answer": "2", "environment": "game"}\n')
    preflight.check_inputs(configuration(tmp_path, **sections))


def test_more_trainer_processes_than_a_machine_runs_are_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(this_machine, "cpu_cores", lambda: 2)
    preflight.check(configuration(tmp_path, trainer={"nproc_per_node": 8}), launch_server=False)
    config = configuration(tmp_path, trainer={"nproc_per_node": 9})
    with pytest.raises(ConfigError, match=r"trainer\.nproc_per_node: got 9, expected at most 8"):
        preflight.check(config, launch_server=False)


def test_a_full_disk_is_told_before_the_start(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(this_machine, "SMALLEST_SPACE", 2**62)
    with pytest.raises(ConfigError, match=r"run\.dir: .* free, and the run needs about"):
        preflight.check(configuration(tmp_path), launch_server=False)


def test_space_counts_versions_served_and_checkpoints(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    config = configuration(
        tmp_path,
        model={"name_or_path": str(tmp_path)},
        rollout={"max_staleness": 1},
        checkpoint={"save_total_limit": 2},
    )
    expected = this_machine.SMALLEST_SPACE + 2 * 1000 + 3 * 3 * 1000
    assert this_machine.space_needed(config) == expected


@pytest.mark.parametrize(("visible", "count"), [("", 0), ("-1", 0), ("0", 1), ("2,3", 2)])
def test_visible_devices_are_counted_without_torch(monkeypatch, visible: str, count: int):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.cuda_count() == count


def test_nvidia_smi_is_asked_where_the_kernel_says_nothing(tmp_path: Path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!{sys.executable}\nprint('GPU 0: A\\nGPU 1: B')\n")
    smi.chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(machine, "NVIDIA_PROC", tmp_path / "none")
    assert machine.cuda_count() == 2


def test_a_free_port_is_none_that_the_kernel_gives_to_others(tmp_path: Path, monkeypatch):
    kernels = tmp_path / "range"
    kernels.write_text("15050\t60999\n")
    monkeypatch.setattr(machine, "EPHEMERAL_PORTS", kernels)
    first = machine.free_port("127.0.0.1")
    second = machine.free_port("127.0.0.1", [first])
    assert {first, second} <= {*range(15000, 15050)}
    assert first != second
    kernels.write_text("1024\t65535\n")  # it gives all of them
    assert machine.is_free("127.0.0.1", machine.free_port("127.0.0.1"))


def test_a_free_port_is_free():
    port = machine.free_port("127.0.0.1")
    assert machine.is_free("127.0.0.1", port)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert not machine.is_free("127.0.0.1", port)
