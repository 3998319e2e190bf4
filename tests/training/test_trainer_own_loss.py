"""The real trainer process with a correction of the user's that goes wrong."""

from pathlib import Path

import numpy as np
import pytest

from tests.training.fixtures import make_model, resolved, write_run
from tests.training.scripted_worker import ScriptedWorker
from tests.training.test_trainer import metrics, start, torchrun


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


LATE_NAN = """
import torch
calls = []

def weight(ratios, limits):
    calls.append(1)
    return ratios.token * (float("nan") if len(calls) > 40 else 1.0)
"""


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_correction_that_gives_nan_ends_the_run_by_its_name_and_trains_nothing_of_it(
    model: Path, tmp_path: Path, num_ranks: int
):
    (tmp_path / "my_loss.py").write_text(LATE_NAN)
    config = resolved(
        model,
        tmp_path,
        loss={"correction": f"{tmp_path}/my_loss.py:weight"},
        trainer={"max_steps": 200, "nproc_per_node": num_ranks},
    )
    write_run(tmp_path, config)
    with ScriptedWorker(tmp_path, num_prompts=50):
        process = start(tmp_path) if num_ranks == 1 else torchrun(tmp_path, num_ranks)
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 1
    assert f"loss.correction: `weight` of {tmp_path}/my_loss.py returned weights that" in errors
    if num_ranks == 1:
        assert "Traceback" not in errors
    assert all(np.isfinite(window["loss"]) for window in metrics(tmp_path))


def test_a_correction_of_the_wrong_shape_ends_the_run_before_its_first_step(
    model: Path, tmp_path: Path
):
    (tmp_path / "my_loss.py").write_text(
        "def weight(ratios, limits):\n    return ratios.token[0]\n"
    )
    correction = f"{tmp_path}/my_loss.py:weight"
    write_run(tmp_path, resolved(model, tmp_path, loss={"correction": correction}))
    process = start(tmp_path)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 1
    assert f"`weight` of {tmp_path}/my_loss.py returned shape []; expected a tensor" in errors
    assert "Traceback" not in errors
