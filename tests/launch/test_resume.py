"""Launcher and trainer go on from the same checkpoint, or refuse it in the same words."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from asyncgrpo.errors import CheckpointError
from asyncgrpo.launch import commands
from asyncgrpo.ledger.checkpoint_layout import (
    MARKER,
    TRAINER_NAME,
    TrainerState,
    checkpoint_path,
    checkpoints_of,
    draft_path,
    seal,
)
from asyncgrpo.ledger.state_file import STATE_NAME, write_state
from asyncgrpo.ledger.states import Ledger
from asyncgrpo.training import trainer
from tests.training.fixtures import make_model, resolved, write_run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run(tmp_path: Path, model: Path) -> Path:
    """A run with whole checkpoints of steps 2 and 4, of 9 steps."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "w3"}\n')
    config = resolved(
        model,
        tmp_path,
        data={"path": str(prompts)},
        rollout={
            "rewards": ({"path": "asyncgrpo.rewards:accuracy_reward"},),
            "max_completion_length": 64,
        },
        trainer={"max_steps": 9},
    )
    write_run(tmp_path, config)
    for step in (2, 4):
        draft = draft_path(checkpoints_of(tmp_path), step)
        draft.mkdir(parents=True)
        write_state(draft, Ledger(10).state(step=step, policy_version=step, seed=42))
        state = TrainerState(step, 99, 1.0, "adamw_torch_fused", {})
        (draft / TRAINER_NAME).write_bytes(msgspec.json.encode(state))
        (draft / "model.safetensors").write_bytes(b"weights")
        seal(draft, folder(tmp_path, step))
    return tmp_path


def folder(run: Path, step: int) -> Path:
    return checkpoint_path(checkpoints_of(run), step)


class BeganError(Exception):
    """All checks of the files are behind."""


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys, caplog):
    """Both sides' choice, and all that they say about it: step or refusal, then warnings."""

    def launcher(run: Path, step: int | None) -> list[str]:
        monkeypatch.setattr(commands, "prepare", lambda loaded: None)
        monkeypatch.setattr(commands, "_train_to_the_end", lambda *_: True)
        commands.resume(run, [], checkpoint=step)
        told = capsys.readouterr()
        return [told.out.split()[-1], *told.err.replace("warning: ", "").splitlines()]

    def trains(run: Path, step: int | None) -> list[str]:
        def restore(config, ranks, checkpoint):
            raise BeganError("start" if checkpoint is None else str(checkpoint.state.step))

        monkeypatch.setattr(trainer, "Trainer", restore)
        monkeypatch.setattr(trainer, "join_ranks", lambda **_: NobodyElse())
        caplog.clear()
        with caplog.at_level(logging.WARNING), pytest.raises(BeganError) as began:
            trainer.train(run, step)
        return [str(began.value), *caplog.messages]

    def answers(run: Path, step: int | None = None) -> list[str]:
        launched, trained = (answer_of(side, run, step) for side in (launcher, trains))
        assert launched == trained
        return launched

    return answers


class NobodyElse:
    rank = 0


def answer_of(side: Callable[[Path, int | None], list[str]], run: Path, step: int | None):
    try:
        return side(run, step)
    except CheckpointError as error:
        return [str(error)]


def test_the_newest_is_gone_on_from_unless_another_is_named(run: Path, ask):
    assert ask(run) == ["4"]
    assert ask(run, 2) == ["2"]


def test_a_run_without_checkpoints_begins_at_the_start(run: Path, ask):
    for step in (2, 4):
        folder(run, step).rename(run / f"elsewhere-{step}")
    assert ask(run) == ["start"]


def test_a_step_without_checkpoint_is_refused(run: Path, ask):
    (answer,) = ask(run, 3)
    assert f"{checkpoints_of(run)} has no checkpoint of step 3; it has: 2, 4" in answer


def test_a_newer_folder_renamed_by_hand_is_named_with_the_right_name(run: Path, ask):
    folder(run, 4).rename(checkpoints_of(run) / "step-4")
    step, warning = ask(run)
    assert step == "2"
    assert "going on from step 2: step-4: the name of a checkpoint is step-000004" in warning
    (answer,) = ask(run, 4)
    assert "no checkpoint of step 4; it has: 2; step-4: the name of a checkpoint" in answer


@pytest.mark.parametrize("name", ["step-4", "step-0000004", "step-000004-old", "step-last"])
def test_the_only_checkpoint_renamed_by_hand_does_not_start_the_run_over(run: Path, ask, name):
    folder(run, 2).rename(run / "elsewhere")
    folder(run, 4).rename(checkpoints_of(run) / name)
    (answer,) = ask(run)
    assert f"has no checkpoint that can be used: {name}: the name of a checkpoint is" in answer
    assert "To start over from the first step instead, move what is there elsewhere" in answer


def test_a_checkpoint_under_the_name_of_another_step_is_refused(run: Path, ask):
    folder(run, 4).rename(folder(run, 7))
    (answer,) = ask(run)
    assert answer.endswith(
        f"step-000007 is of step 4, as its {STATE_NAME} says: rename it step-000004"
    )


def test_a_checkpoint_without_its_marker_is_named(run: Path, ask):
    (folder(run, 4) / MARKER).unlink()
    step, warning = ask(run)
    assert step == "2"
    assert "going on from step 2: step-000004: complete.json is missing" in warning
    assert "it has: 2; step-000004: complete.json is missing" in ask(run, 4)[0]
    (folder(run, 2) / MARKER).unlink()
    (answer,) = ask(run)
    assert "can be used: step-000002: complete.json is missing" in answer
    assert "; step-000004: complete.json is missing" in answer


def test_an_older_folder_that_cannot_be_used_is_no_news(run: Path, ask):
    (folder(run, 2) / MARKER).unlink()
    assert ask(run) == ["4"]


@pytest.mark.parametrize(
    ("damage", "fault"), [(None, "is missing"), (b"short", "has 5 bytes, expected 7")]
)
def test_a_damaged_file_is_named(run: Path, ask, damage: bytes | None, fault: str):
    file = folder(run, 4) / "model.safetensors"
    file.unlink()
    if damage is not None:
        file.write_bytes(damage)
    (answer,) = ask(run)
    assert f"step-000004 is not a complete checkpoint: model.safetensors {fault}" in answer
    assert "resume from another one with --checkpoint STEP" in answer
    assert ask(run, 2) == ["2"]


@pytest.mark.parametrize("damage", [b"{", b"[]", b"{}", b"\xff"])
def test_a_damaged_marker_is_named(run: Path, ask, damage: bytes):
    (folder(run, 4) / MARKER).write_bytes(damage)
    assert "complete.json or trainer.json is damaged" in ask(run)[0]


def rewrite(file: Path, change: Callable[[dict], object]) -> None:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (STATE_NAME, lambda s: s.update(format=0), "format 0; this version reads format 1"),
        (STATE_NAME, lambda s: s.pop("seed"), f"{STATE_NAME} has no seed, which this version"),
        (TRAINER_NAME, lambda s: s.pop("scalars"), f"{TRAINER_NAME} has no scalars, which this"),
    ],
)
def test_a_checkpoint_of_an_older_layout_names_the_file_and_the_way_out(
    run: Path, ask, name, change, message
):
    file = folder(run, 4) / name
    rewrite(file, change)
    rewrite(file.with_name(MARKER), lambda m: m["files"].update({name: file.stat().st_size}))
    (answer,) = ask(run)
    assert message in answer
    assert "resume with the version of asyncgrpo that wrote it" in answer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["config"].pop("model"), r"not a configuration of this version (model: Field"),
        (lambda d: d["config"]["loss"].update(beta=1), "(loss.beta: Extra inputs"),
        (lambda d: d["config"].update(old={}), "(old: Extra inputs"),
        (lambda d: d.pop("derived"), "got no `config` and `derived`"),
    ],
)
def test_a_run_directory_of_an_older_layout_is_refused_by_file(run: Path, ask, change, message):
    rewrite(run / "config.json", change)
    (answer,) = ask(run)
    assert answer.startswith(f"{run / 'config.json'}: ")
    assert message in answer


def test_what_an_older_configuration_lacks_and_has_a_default_is_filled_in(run: Path, ask):
    rewrite(run / "config.json", lambda d: d["config"].pop("checkpoint"))
    rewrite(run / "config.json", lambda d: d["derived"].update({"trainer.old_key": "why"}))
    assert ask(run) == ["4"]
