"""A correction of the user's: the same door as ours, and a name for each broken contract."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from asyncgrpo.config.sections.loss import LossConfig
from asyncgrpo.errors import HookError
from asyncgrpo.training.loss.correction import Correction, RatioLimits, Ratios
from asyncgrpo.training.loss.loss import policy_loss
from asyncgrpo.training.loss.loss_sums import loss_metrics
from tests.training.fixtures import loss_settings
from tests.training.loss.test_correction import HIGH, LOW, draw_case, gradient, row_of
from tests.training.loss.test_loss import V, scores_of

DOCS = Path(__file__).parents[3] / "docs" / "loss.md"
LIMITS = RatioLimits(0.5, 5.0, 0.2, 0.2)
HEAD = "import torch\nfrom asyncgrpo import Ratios, RatioLimits, gate\n\n"


def own(folder: Path, source: str) -> str:
    file = folder / "my_loss.py"
    file.write_text(HEAD + source)
    return f"{file}:weight"


def returning(folder: Path, expression: str) -> str:
    return own(folder, f"def weight(ratios, limits):\n    return {expression}\n")


MASK = """
def weight(ratios, limits):
    r = ratios.log_ratio.exp()
    return r * ((r >= limits.clip_min) & (r <= limits.clip_max))
"""


@pytest.mark.parametrize("centering", [True, False])
@pytest.mark.parametrize(
    ("source", "ours"), [(MASK, "icepop"), (MASK.replace("def", "@gate\ndef"), "token_mask")]
)
def test_one_of_ones_own_trains_as_the_built_in_one_of_its_formula(
    tmp_path: Path, centering: bool, source: str, ours: str
):
    z, q, tokens, advantages = draw_case(3, 0.5)
    row = row_of(q, tokens, advantages, 3)
    both = [
        gradient(z, row, loss_settings(
            correction=name, score_centering=centering, clip_min=LOW, clip_max=HIGH,
            centering_tail="proportional",
        ))
        for name in (own(tmp_path, source), ours)
    ]  # fmt: skip
    assert np.abs(both[1]).max() > 0.01
    np.testing.assert_allclose(*both, rtol=1e-6, atol=1e-8)


def test_a_weight_may_depend_on_the_advantage_and_keeps_the_law_of_a_constant_one(tmp_path: Path):
    """One token drawn from all V: the mean gradient over the sampler is 0 for each advantage."""
    correction = returning(tmp_path, "torch.where(ratios.advantage < 0, ratios.token, 2.0)")
    q = np.full((V, 1, V), 1 / V)
    z = np.tile(np.linspace(-1, 1, V), (V, 1, 1))
    for advantage in (1.5, -1.5):
        row = row_of(q, [[v] for v in range(V)], [advantage] * V, V)
        grads = gradient(z, row, loss_settings(correction=correction))
        assert np.abs(grads).max() > 0.01
        np.testing.assert_allclose(grads.mean(0), 0, atol=1e-6)


def test_all_tensors_have_the_shape_of_the_log_ratios():
    row = row_of(np.full((2, 3, V), 1 / V), [[0, 1, 2], [0, 0, 0]], [1.0, -1.0])
    drawn = Ratios.of(torch.linspace(-1, 1, 6), row)
    assert drawn.length.tolist() == [3.0] * 6
    assert drawn.advantage.tolist() == [1.0] * 3 + [-1.0] * 3
    others = drawn.had(torch.zeros(6, 4))
    assert {each.shape for each in others.tensors} == {(6, 4)}
    assert others.log_rest[:, 2].tolist() == drawn.log_rest.tolist()
    assert others.sample.shape == others.mean.shape == (6, 4)


BROKEN = {
    "ratios.token.sum()": r"returned shape \[\]; expected a tensor of the shape of .*, \[1\]",
    "ratios.token[:1]": r"returned shape \[1\]; expected .*, \[3\]",
    "ratios.token.sum(-1, keepdim=True)": r"returned shape \[1\]; expected .*, \[3\]",
    "1.0": r"returned a float; expected a tensor of the shape",
    "None": r"returned a NoneType; expected a tensor",
    "ratios.token * float('nan')": r"returned \[nan\] for the log ratios .* expected finite",
    "1 / (ratios.log_ratio - ratios.log_ratio)": r"returned \[inf\] for",
    "ratios.token * torch.ones(1, requires_grad=True)": "returned weights that need a gradient of",
    "ratios.log_ratio.clamp_(min=0).exp()": "changed its arguments; expected a function that only",
    "ratios.token.to(torch.complex64)": "returned torch.complex64 on cpu; expected real numbers",
    "ratios.tokens": r"raised AttributeError: .*'tokens' \(.*:5 in .*\)",
    "1 // 0": r"raised ZeroDivisionError: .* \(.*:5 in .*\)",
}


@pytest.mark.parametrize("expression", BROKEN)
def test_a_function_that_breaks_its_contract_is_named_with_its_file_before_training(
    tmp_path: Path, expression: str
):
    correction = Correction.named(returning(tmp_path, expression))
    named = re.escape(f"loss.correction: `weight` of {tmp_path}/my_loss.py ")
    with pytest.raises(HookError, match=named + BROKEN[expression]):
        correction.rehearse(LossConfig(), LIMITS, torch.device("cpu"))


def test_a_mistake_in_the_centering_shape_alone_is_found_too(tmp_path: Path):
    correction = Correction.named(returning(tmp_path, "ratios.token.reshape(-1)"))
    correction.rehearse(LossConfig(score_centering=False), LIMITS, torch.device("cpu"))
    with pytest.raises(HookError, match=r"returned shape \[3\]; expected .*, \[3, 1\]"):
        correction.rehearse(LossConfig(), LIMITS, torch.device("cpu"))


def test_masks_and_whole_numbers_are_weights(tmp_path: Path):
    correction = Correction.named(returning(tmp_path, "ratios.token < limits.clip_max"))
    assert correction.weight(Ratios(*[torch.zeros(2)] * 4), LIMITS).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("weight = 5", "5 is not a callable object; expected a function of two arguments"),
        ("def weight(ratios): ...", "too many positional arguments; expected a function of two"),
        ("@gate\ndef weight(ratios): ...", "too many positional arguments; expected"),
        ("raise RuntimeError('no')", "failed: RuntimeError: no"),
    ],
)
def test_what_is_no_correction_is_told_when_it_is_loaded(tmp_path: Path, source: str, told: str):
    with pytest.raises(HookError, match=f"loss.correction: .*{told}"):
        Correction.named(own(tmp_path, source))


@pytest.mark.parametrize("centering", [True, False])
def test_weights_that_are_not_finite_are_counted_where_the_ratios_are(
    tmp_path: Path, centering: bool
):
    z, q, tokens, advantages = draw_case(3, 0.5)
    row = row_of(q, tokens, advantages, 3)
    settings = loss_settings(
        score_centering=centering,
        correction=returning(
            tmp_path, "torch.where(ratios.log_ratio > 0.4, torch.nan, ratios.token)"
        ),
    )
    loss, sums = policy_loss(scores_of(torch.from_numpy(z.reshape(-1, V)), row), row, settings, 1.0)
    assert not torch.isfinite(loss)
    assert 0 < sums.num_unsound < row.num_trained or centering
    assert not [name for name in loss_metrics([sums.aggregates()]) if name.startswith("_")]
    with pytest.raises(HookError, match=f"my_loss.py returned .* for {sums.num_unsound} tokens"):
        settings.correction.refuse_unsound(sums.num_unsound)
    z[0, 0] = np.nan  # a policy without a number is no fault of the correction
    scores = scores_of(torch.from_numpy(z.reshape(-1, V)), row)
    _, sums = policy_loss(scores, row, loss_settings(score_centering=centering), 1.0)
    assert sums.num_unsound == 0


def test_the_example_of_the_docs_does_what_they_say(tmp_path: Path):
    (code,) = [
        c for c in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "my_loss" in c
    ]
    (tmp_path / "my_loss.py").write_text(code)
    correction = Correction.named(f"{tmp_path}/my_loss.py:weight")
    correction.rehearse(LossConfig(), LIMITS, torch.device("cpu"))
    ratios = Ratios(
        log_ratio=torch.tensor([3.0, -0.5, -0.5, -0.5]),
        log_rest=torch.tensor([0.0, -0.5, -0.5, 1.0]),
        length=torch.full((4,), 2.0),
        advantage=torch.tensor([1.0, 1.0, -1.0, -1.0]),
    )
    weights = correction.weight(ratios, LIMITS)
    assert weights.tolist() == pytest.approx([5.0, np.exp(-0.5), 0.0, np.exp(-0.5)])
