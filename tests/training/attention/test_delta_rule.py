"""The chunked delta rule over a tree against the recurrence, token by token."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.utils._python_dispatch import TorchDispatchMode

from asyncgrpo.packing.row import build_row
from asyncgrpo.records import Row
from asyncgrpo.training.attention.delta_rule import TokenStates, tree_delta_rule
from asyncgrpo.training.attention.row_recurrence import RowRecurrence
from tests.packing.made_samples import make_sample, path_positions, samples

HEADS, KEY_SIZE, VALUE_SIZE = 2, 3, 4


def random_tokens(num_tokens: int, dtype: torch.dtype = torch.float64) -> TokenStates:
    """Decays near 1, so that a path's first tokens still count at its end."""
    generator = torch.Generator().manual_seed(num_tokens)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(num_tokens, HEADS, *shape, generator=generator, dtype=torch.float64)

    made = (
        draw(KEY_SIZE),
        draw(KEY_SIZE),
        draw(VALUE_SIZE),
        -0.05 * draw().exp(),
        draw().sigmoid(),
    )
    return TokenStates(*(tensor.to(dtype).requires_grad_() for tensor in made))


def recurrence(tokens: TokenStates, path: Sequence[int]) -> torch.Tensor:
    """The rule as its formula says, over the tokens of one path."""
    outputs = []
    state_HDE = torch.zeros(HEADS, KEY_SIZE, VALUE_SIZE, dtype=tokens.value_NHE.dtype)
    for n in path:
        query_HD, key_HD, value_HE, log_decay_H, beta_H = (tensor[n] for tensor in tokens)
        query_HD, key_HD = (
            x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (query_HD, key_HD)
        )
        state_HDE = state_HDE * log_decay_H.exp()[:, None, None]
        known_HE = torch.einsum("hd,hde->he", key_HD, state_HDE)
        written_HE = beta_H[:, None] * (value_HE - known_HE)
        state_HDE = state_HDE + torch.einsum("hd,he->hde", key_HD, written_HE)
        outputs.append(torch.einsum("hd,hde->he", query_HD, state_HDE) / KEY_SIZE**0.5)
    return torch.stack(outputs)


def leaf_paths(row: Row) -> Iterator[list[int]]:
    ends = row.segment_start_S + row.segment_length_S
    for segment in set(range(ends.size)) - set(row.segment_parent_S.tolist()):
        yield path_positions(row, int(ends[segment]) - 1)


def assert_rule_is_recurrence(row: Row, dtype: torch.dtype, tolerance: float) -> None:
    """Outputs by position, and the gradients of a random function of them."""
    tokens = random_tokens(row.input_ids_N.size, dtype)
    found = tree_delta_rule(tokens, RowRecurrence(row, torch.device("cpu")).chunks)
    expected = torch.zeros_like(found)
    for path in leaf_paths(row):
        positions = torch.tensor(path)
        expected = expected.index_put((positions,), recurrence(tokens, path))
    weights = torch.randn_like(found)
    gradients = torch.autograd.grad((found * weights).sum(), tokens)
    others = torch.autograd.grad((expected * weights).sum(), tokens)
    for one, other in zip((found, *gradients), (expected, *others), strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


def long_row() -> Row:
    """Segments of several chunks, of one token, and of 63 to 65; forks in forks; two roots."""
    rng = np.random.default_rng(3)

    def draw(n: int) -> list[int]:
        return rng.integers(0, 50, n).tolist()

    stem = draw(150)
    fork = [*stem, *draw(63)]
    tokens = [[*stem, *draw(n)] for n in (1, 2, 15, 16, 17, 63, 64, 65, 130)]
    tokens += [[*fork, *draw(n)] for n in (1, 40, 129)] + [draw(70), draw(1)]
    return build_row([make_sample(i, ids) for i, ids in enumerate(tokens)])


def test_a_token_that_replaces_what_the_state_has_for_its_key():
    row = build_row([make_sample(0, [5, 6])])
    one = torch.ones(2, 1, 1, dtype=torch.float64)
    value = torch.tensor([3.0, 7.0], dtype=torch.float64).view(2, 1, 1)
    tokens = TokenStates(one, one, value, torch.zeros(2, 1).double(), one[..., 0])
    output = tree_delta_rule(tokens, RowRecurrence(row, torch.device("cpu")).chunks)
    torch.testing.assert_close(output, value, atol=1e-5, rtol=1e-5)  # the unit length's epsilon


@settings(max_examples=25, deadline=None)
@given(samples(max_tokens=30))
def test_it_is_the_recurrence_along_each_path(given_samples):
    assert_rule_is_recurrence(build_row(given_samples), torch.float64, 1e-11)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-4)], ids=str
)
def test_so_it_is_over_many_chunks(dtype: torch.dtype, tolerance: float):
    assert_rule_is_recurrence(long_row(), dtype, tolerance)


def test_sums_of_bfloat16_tokens_are_in_float32():
    row = long_row()
    tokens = random_tokens(row.input_ids_N.size, torch.bfloat16)
    plan = RowRecurrence(row, torch.device("cpu")).chunks
    found = tree_delta_rule(tokens, plan)
    exact = tree_delta_rule(TokenStates(*(t.detach().double() for t in tokens)), plan)
    assert found.dtype == torch.bfloat16
    # All that is lost is the rounding of the outputs: 8 bits.
    torch.testing.assert_close(found.double(), exact, atol=1e-4, rtol=2**-8)


class _Written(TorchDispatchMode):
    """Counts the elements that operations write."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, torch.Tensor) and not each._is_view():
                self.elements += each.numel()
        return result


def elements_written(num_tokens: int, num_samples: int) -> int:
    """By forward and backward over `num_samples` that share a third of their tokens."""
    rng = np.random.default_rng(num_tokens)
    prompt = rng.integers(0, 50, num_tokens // 3).tolist()
    each = (num_tokens - len(prompt)) // num_samples
    rollouts = [[*prompt, *rng.integers(0, 50, each).tolist()] for _ in range(num_samples)]
    row = build_row([make_sample(i, ids) for i, ids in enumerate(rollouts)])
    tokens = random_tokens(row.input_ids_N.size, torch.float32)
    plan = RowRecurrence(row, torch.device("cpu")).chunks
    with _Written() as written:
        tree_delta_rule(tokens, plan).sum().backward()
    return written.elements


@pytest.mark.parametrize("num_samples", [1, 8])
def test_work_grows_with_the_tokens_and_no_faster(num_samples: int):
    short, long = (elements_written(n * 64 * 24, num_samples) for n in (1, 8))
    assert long / short == pytest.approx(8, rel=0.05)
