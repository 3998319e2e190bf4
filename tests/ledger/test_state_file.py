"""rollout_state.json: exact on the way back, and refused with a reason when it is not sound."""

import json
from pathlib import Path

import msgspec
import pytest

from asyncgrpo.errors import CheckpointError
from asyncgrpo.ledger.state_file import STATE_NAME, RolloutState, read_state, write_state

STATE = RolloutState(
    step=48,
    policy_version=12,
    epoch=0,
    seed=42,
    num_prompts=1460,
    prompt_index=311,
    resolved=((0, 311), (313, 320)),
    partial={"312": (0, 1, 5)},
    dropped={"no_signal": 40, "stale": 1},
    rng={"seed": 42, "step": 48},
)


def test_it_reads_as_the_documentation_says(tmp_path: Path):
    write_state(tmp_path, STATE)
    assert json.loads((tmp_path / STATE_NAME).read_text()) == {
        "format": 1,
        "step": 48,
        "policy_version": 12,
        "epoch": 0,
        "seed": 42,
        "num_prompts": 1460,
        "prompt_index": 311,
        "resolved": [[0, 311], [313, 320]],
        "partial": {"312": [0, 1, 5]},
        "dropped": {"no_signal": 40, "stale": 1},
        "rng": {"seed": 42, "step": 48},
    }


def test_it_comes_back_as_it_was_written(tmp_path: Path):
    write_state(tmp_path, STATE)
    assert read_state(tmp_path) == STATE


def broken(**changes: object) -> str:
    return json.dumps({**json.loads(msgspec_json()), **changes})


def msgspec_json() -> str:
    return msgspec.json.encode(STATE).decode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(None, "missing", id="missing"),
        pytest.param("", "damaged", id="empty"),
        pytest.param(msgspec_json()[:50], "damaged", id="cut short"),
        pytest.param("[1]", "format None", id="a list"),
        pytest.param(broken(format=2), "format 2", id="a later format"),
        pytest.param(broken(step="x"), "damaged", id="a wrong type"),
        pytest.param(broken(num_prompts=0), "contradicts", id="no prompts"),
        pytest.param(broken(prompt_index=1460), "contradicts", id="past the end"),
        pytest.param(broken(resolved=[[5, 9], [2, 4]]), "contradicts", id="out of order"),
        pytest.param(broken(prompt_index=5), "contradicts", id="resolved where it starts"),
    ],
)
def test_an_unsound_file_is_refused(tmp_path: Path, text: str | None, message: str):
    if text is not None:
        (tmp_path / STATE_NAME).write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_state(tmp_path)
