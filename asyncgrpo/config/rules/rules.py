"""Rules across keys: values that are right alone, but not together.

    rules_rollout   data, rollout, server              ─┐
    rules_sampling  top_k, top_p, min_p                ─┤
    rules_training  model, trainer, loss, sync, ...    ─┴─ RULES --broken--> (blamed key, message)

A rule is skipped where one of its keys has a problem already. Rules also run on the derived
configuration; a value that is still to be derived (null, auto) breaks none.
"""

from collections.abc import Iterator

from asyncgrpo.config.problems import Key
from asyncgrpo.config.rules import rules_rollout, rules_sampling, rules_training
from asyncgrpo.config.rules.rule import RULES, Flags
from asyncgrpo.config.sections.tree import Config

__all__ = ["RULES", "broken", "rules_rollout", "rules_sampling", "rules_training"]


def broken(config: Config, flags: Flags, bad: set[Key]) -> Iterator[tuple[Key, str]]:
    """The rules that are broken: the key each blames, and its message."""
    for rule in RULES:
        if not any(_overlap(key, bad_key) for key in rule.keys for bad_key in bad):
            message = rule.check(config, flags)
            if message:
                yield rule.keys[0], message


def _overlap(key: Key, other: Key) -> bool:
    shared = min(len(key), len(other))
    return key[:shared] == other[:shared]
