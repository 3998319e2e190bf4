"""B2: forward and backward of a decoder over a tree row, against its samples without sharing.

    tree    a row of R raw tokens for each forwarded one        --decoder-->  hidden  --backward-->
    flat    the same samples, each a tree of its own, one row

R = 1 has nothing to share: there the row is held against transformers' own attention over the
samples as a padded batch (of equal lengths, so nothing is padded).

Rows hold about as many forwarded tokens at every R, as a token budget makes them. The LM head is
left out: it scores the same positions either way. Planning the attention calls is included,
building the row is not: it happens off the training thread. Each pair of runs gives a ratio, so
that the load of a shared machine falls on both.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from asyncgrpo.packing.row import build_row
from asyncgrpo.records import Row, Sample
from asyncgrpo.training.attention.tree_attention import ATTENTION_NAME, RowAttention
from tests.bench.figure import Figure
from tests.bench.groups import make_groups

VOCABULARY = 1024
GROUP_SIZE = 8
LENGTH = 512  # prompt and mean answer
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Decoder:
    """Two layers of Qwen3's kind, heads of 64, half as many for keys, float32."""

    hidden: int
    judged: bool

    def make(self) -> Any:
        """Random weights."""
        torch.manual_seed(0)
        heads = self.hidden // 64
        config = Qwen3Config(
            vocab_size=VOCABULARY, hidden_size=self.hidden, intermediate_size=3 * self.hidden,
            num_hidden_layers=2, num_attention_heads=heads, num_key_value_heads=heads // 2,
            head_dim=64, max_position_embeddings=2 * LENGTH,
        )  # fmt: skip
        model: Any = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION_NAME)
        return model.model


DECODERS = (Decoder(512, judged=True), Decoder(256, judged=False))
SHARED = {2.0: 1, 3.4: 1, 6.0: 2}  # R: groups in a row


def measure() -> list[Figure]:
    """Speed-ups as a part of R, and their absolute value."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [figure for decoder in DECODERS for figure in _measure(decoder)]
    finally:
        torch.set_num_threads(threads)


def _measure(decoder: Decoder) -> list[Figure]:
    model = decoder.make()
    unshared = samples_at(1.0, groups=1)[: GROUP_SIZE // 2]
    row = build_row(unshared)
    speed_up = _ratio(lambda: run_batch(model, unshared), lambda: run_row(model, row))
    name = f"hidden {decoder.hidden}"
    bar = 0.97 if decoder.judged else None
    plain = Figure("B2", f"{name}, R = 1, speed", speed_up, "of a plain batch", bar)
    return [plain, *(_shared(decoder, model, ratio, groups) for ratio, groups in SHARED.items())]


def _shared(decoder: Decoder, model: Any, ratio: float, groups: int) -> Figure:
    """A tree row against the same samples without sharing."""
    samples = samples_at(ratio, groups)
    tree, flat = build_row(samples), flat_row(samples)
    actual = tree.raw_tokens / tree.input_ids_N.size
    speed_up = _ratio(lambda: run_row(model, flat), lambda: run_row(model, tree))
    what = f"hidden {decoder.hidden}, R = {actual:.2f}, speed-up {speed_up:.2f}"
    bar = 0.90 if decoder.judged else None
    return Figure("B2", what, speed_up / actual, "R", bar)


def samples_at(ratio: float, groups: int) -> list[Sample]:
    """Groups whose rows have `ratio` raw tokens for each forwarded one, about."""
    shared = (GROUP_SIZE - GROUP_SIZE / ratio) / (GROUP_SIZE - 1)
    prompt = round(LENGTH * shared)
    spread = 0.5 if prompt else 0.0
    made = make_groups(
        groups, GROUP_SIZE, prompt, LENGTH - prompt, spread=spread, vocabulary=VOCABULARY
    )
    return list(made)


def flat_row(samples: list[Sample]) -> Row:
    """The samples one after another, none sharing anything: each is a tree of its own."""
    rows = [build_row([sample]) for sample in samples]
    starts = np.cumsum([0, *(row.input_ids_N.size for row in rows[:-1])]).astype(np.int32)

    def joined(name: str, *, shifted: bool = False) -> np.ndarray:
        parts = [getattr(row, name) for row in rows]
        if shifted:
            parts = [part + start for part, start in zip(parts, starts, strict=True)]
        return np.concatenate(parts)

    return msgspec.structs.replace(
        rows[0],
        input_ids_N=joined("input_ids_N"),
        position_ids_N=joined("position_ids_N"),
        segment_start_S=joined("segment_start_S", shifted=True),
        segment_length_S=joined("segment_length_S"),
        segment_parent_S=joined("segment_parent_S"),
        term_position_T=joined("term_position_T", shifted=True),
        raw_tokens=sum(row.raw_tokens for row in rows),
    )


def run_row(model: Any, row: Row) -> torch.Tensor:
    """Forward a row and backward from the positions that predict; their hidden states."""
    hidden = model(
        input_ids=torch.from_numpy(row.input_ids_N)[None].long(),
        position_ids=torch.from_numpy(row.position_ids_N)[None].long(),
        use_cache=False,
        row_attention=RowAttention(row, torch.device("cpu")),
    ).last_hidden_state[0]
    return _backward(hidden[torch.from_numpy(row.term_position_T).long()])


def run_batch(model: Any, samples: list[Sample]) -> torch.Tensor:
    """The same for samples of one length as a batch, by transformers' own attention."""
    input_ids = torch.from_numpy(np.stack([sample.input_ids for sample in samples])).long()
    model.set_attn_implementation("sdpa")
    hidden = model(input_ids=input_ids, use_cache=False).last_hidden_state
    model.set_attn_implementation(ATTENTION_NAME)
    trained = torch.from_numpy(np.stack([sample.trained for sample in samples])).bool()
    return _backward(hidden[:, :-1][trained[:, 1:]])


def _backward(hidden: torch.Tensor) -> torch.Tensor:
    hidden.square().sum().backward()
    return hidden.detach()


def _ratio(baseline: Callable[[], object], ours: Callable[[], object]) -> float:
    """Median of the CPU times' ratios, run in turn, after one run of each."""
    baseline()
    ours()
    return statistics.median(_cpu(baseline) / _cpu(ours) for _ in range(REPEATS))


def _cpu(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
