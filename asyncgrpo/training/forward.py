"""The policy's forward pass over a packed row.

    RowTensors --decoder, with tree attention--> hidden [N, H] --tiled LM head--> TermScores

`PolicyModel` wraps a causal LM of transformers, or a peft model around one, and runs its decoder
without its own head: the head's weight is read inside `forward`, so sharded and tied weights work.

Letters: N forwarded tokens, T loss terms, K top sampler tokens, M samples, n tokens of a sequence.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from asyncgrpo.training.architecture import Architecture, inspect_model
from asyncgrpo.training.lm_head import LogitShape, score_terms
from asyncgrpo.training.row_tensors import RowTensors

__all__ = ["PolicyModel", "RowTensors", "TermScores"]


class TermScores(NamedTuple):
    """What the policy says about a row's terms."""

    logprob_T: Tensor
    top_logprob_TK: Tensor | None  # None where the row has no top tokens
    entropy_T: Tensor  # carries no gradient


class PolicyModel(nn.Module):
    """A causal LM that scores rows.

    Raises:
        ConfigError: The architecture asks for something a packed row cannot give it.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._architecture: tuple[Architecture] = (inspect_model(model),)  # hidden from nn.Module

    def forward(self, row: RowTensors, temperature: float = 1.0) -> TermScores:
        """Score a row's terms at the sampler's temperature."""
        architecture = self._architecture[0]
        output: Any = architecture.decoder(
            input_ids=row.input_ids_1N,
            position_ids=row.position_ids_1N,
            use_cache=False,
            row_attention=row.attention,
            row_recurrence=row.recurrence,
        )
        row.attention.check_used(architecture.name)
        if architecture.has_recurrence:
            row.recurrence.check_used(architecture.name)
        head = architecture.head
        scores = score_terms(
            cast("Tensor", output.last_hidden_state)[0],
            head.weight,
            row.term_position_T,
            row.term_target_T,
            bias_V=cast("Tensor | None", head.bias),
            top_ids_TK=row.top_ids_TK,
            shape=LogitShape(temperature, architecture.logit_scale, architecture.logit_softcap),
        )
        top_logprob_TK = None if row.top_ids_TK is None else scores.top_logprob_TK
        return TermScores(scores.logprob_T, top_logprob_TK, scores.entropy_T)

    @torch.no_grad()
    def sequence_logprobs(self, token_ids: list[int], temperature: float = 1.0) -> Tensor:
        """Logprobs of tokens 1 .. n-1 of one plain sequence, each given those before it."""
        device = self._architecture[0].head.weight.device
        logprobs = self(RowTensors.from_sequence(token_ids, device), temperature).logprob_T
        if isinstance(self, FSDPModule):  # without a backward the root would stay gathered
            self.reshard()
        return logprobs
