"""Rules about truncated sampling: the trainer must know what each token was drawn from.

`top_k` bounds that set, so that the server can tell it; `top_p` and `min_p` alone do not.
"""

from asyncgrpo.config.rules.rule import Flags, rule
from asyncgrpo.config.sections.tree import Config


@rule("rollout.top_k", "rollout.top_p", "rollout.min_p")
def _candidate_sets_are_bounded(config: Config, _: Flags) -> str | None:
    rollout = config.rollout
    if rollout.top_k or (rollout.top_p == 1 and not rollout.min_p):
        return None
    beside = f"top_p = {rollout.top_p:g}" if rollout.top_p < 1 else f"min_p = {rollout.min_p:g}"
    return (
        f"got 0 beside rollout.{beside}, expected the most tokens that one is drawn from, such as "
        "20: ratios need every one of them, and top_k bounds them"
    )


@rule("rollout.top_k")
def _there_is_a_choice(config: Config, _: Flags) -> str | None:
    if config.rollout.top_k != 1:
        return None
    return "got 1, expected more, or 0 for all: all rollouts of a group would be the same"
