"""The policy's forward pass over a packed row.

    RowTensors --decoder, with tree attention--> hidden [N, H] --tiled LM head--> TermScores
                                             └── router logits --> load-balancing loss

`PolicyModel` wraps a causal LM of transformers, or a peft model around one, and runs its decoder
without its own head: the head's weight is read inside `forward`, so sharded and tied weights work.

Letters: N forwarded tokens, T loss terms, K top sampler tokens, M samples, n tokens of a sequence.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from asyncgrpo.training.attention.attention_backends import Backends
from asyncgrpo.training.attention.tree_attention import SDPA_ONLY
from asyncgrpo.training.head.lm_head import score_terms
from asyncgrpo.training.head.logit_shape import Head, LogitShape
from asyncgrpo.training.model.architecture import Architecture, inspect_model
from asyncgrpo.training.model.load_balance import effective_coefficient, load_balancing_loss
from asyncgrpo.training.model.row_tensors import RowTensors


class TermScores(NamedTuple):
    """The policy's scores of a row's terms."""

    logprob_T: Tensor  # over the term's candidates, as the sampler's; else over the vocabulary
    top_logprob_TK: Tensor | None  # None where the row has no top tokens
    entropy_T: Tensor  # carries no gradient
    balance: Tensor | None = None  # load-balancing loss of the row; None = not asked for


class PolicyModel(nn.Module):
    """A causal LM that scores rows.

    Args:
        model: A causal LM of transformers, or a peft model around one.
        backends: What computes its attention.
        router_aux_loss_coef: Weight of the load-balancing loss; None = the model's own.

    Raises:
        ConfigError: The architecture asks for something a packed row cannot give it.
    """

    def __init__(
        self,
        model: nn.Module,
        backends: Backends = SDPA_ONLY,
        router_aux_loss_coef: float | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self._architecture: tuple[Architecture] = (inspect_model(model),)  # hidden from nn.Module
        self._backends = backends
        router, name = self._architecture[0].router, self._architecture[0].name
        self.router_aux_loss_coef = effective_coefficient(router_aux_loss_coef, router, name)

    def forward(self, row: RowTensors, temperature: float = 1.0) -> TermScores:
        """Scores a row's terms at the sampler's temperature."""
        architecture = self._architecture[0]
        output: Any = architecture.decoder(
            input_ids=row.input_ids_1N,
            position_ids=row.position_ids_1N,
            use_cache=False,
            row_attention=row.attention,
            attention_backends=self._backends,
            row_recurrence=row.recurrence,
            **({"output_router_logits": True} if self.router_aux_loss_coef else {}),
        )
        row.attention.check_used(architecture.name)
        if architecture.has_recurrence:
            row.recurrence.check_used(architecture.name)
        linear = architecture.head
        shape = LogitShape(temperature, architecture.logit_scale, architecture.logit_softcap)
        scores = score_terms(
            cast("Tensor", output.last_hidden_state)[0],
            Head(linear.weight, cast("Tensor | None", linear.bias), shape),
            row.term_position_T,
            row.term_target_T,
            top_ids_TK=row.top_ids_TK,
            candidates=row.candidates,
        )
        top_logprob_TK = None if row.top_ids_TK is None else scores.top_logprob_TK
        return TermScores(
            scores.logprob_T, top_logprob_TK, scores.entropy_T, self._balance(architecture, output)
        )

    def _balance(self, architecture: Architecture, output: Any) -> Tensor | None:
        if not self.router_aux_loss_coef:
            return None
        assert architecture.router is not None, "a coefficient needs a router"
        return load_balancing_loss(output.router_logits, architecture.router.top_k)

    @torch.no_grad()
    def sequence_logprobs(self, token_ids: list[int], temperature: float = 1.0) -> Tensor:
        """Logprobs of tokens 1 .. n-1 of one plain sequence, each given those before it."""
        device = self._architecture[0].head.weight.device
        logprobs = self(RowTensors.from_sequence(token_ids, device), temperature).logprob_T
        if isinstance(self, FSDPModule):  # without a backward the root would stay gathered
            self.reshard()
        return logprobs
