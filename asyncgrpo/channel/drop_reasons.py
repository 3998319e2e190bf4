"""Reasons why prompts are not trained, in words: what happened, and what to look at.

Each completes a sentence about prompts or groups: "63 of them got the same reward for ...".
"""

from collections.abc import Mapping
from typing import Final

from asyncgrpo.channel.messages import DropReason

MEANING: Final[Mapping[str, str]] = {
    DropReason.FILTERED: (
        "were filtered out before generation: see `filter_prompt` of rollout.loop and "
        "logs/latest/worker.log"
    ),
    DropReason.NO_SIGNAL: (
        "got the same reward for every rollout of their group, so there was nothing to learn: see "
        "whether rollout.rewards can tell a good answer from a bad one, and whether the prompts "
        "are all too hard or too easy for this model"
    ),
    DropReason.UNSCORED: "were not scored: every function of rollout.rewards returned None",
    DropReason.ALL_MASKED: (
        "have no token to train, though their rewards differ: see `output_mask` of the turns that "
        "`generate_one` of rollout.loop returns"
    ),
    DropReason.STALE: "grew older than rollout.max_staleness: raise it",
    DropReason.OVERSIZE: (
        "have more tokens than trainer.token_budget: raise it, or lower "
        "rollout.max_completion_length"
    ),
    DropReason.TOO_LONG: (
        "do not fit into server.max_model_len, and data.long_prompts is drop: raise the one, or "
        "shorten the prompts"
    ),
    DropReason.ERROR: (
        "failed in a reward, a hook or a request, or did not fit into the context: see "
        "logs/latest/worker.log"
    ),
}
