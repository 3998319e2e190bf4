"""Keys that this version does not support yet: refused by name, never silently ignored.

key -> what to write instead, and the values accepted by now (the default alone, unless it says so)
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from asyncgrpo.config.problems import Key, dotted, shown
from asyncgrpo.config.sections.tree import Config, default_of, leaf

Accepts = Callable[[object], bool]


@dataclass(frozen=True)
class NotYet:
    """A key that takes fewer values than its type says."""

    key: Key
    accepts: Accepts
    instead: str

    def refusal(self, config: Config) -> str | None:
        """The message for this configuration, if there is one."""
        value = leaf(config, self.key)
        if self.accepts(value):
            return None
        return f"not yet available: {dotted(self.key)} = {shown(value)}; {self.instead}"


def _default_alone(key: Key) -> Accepts:
    return lambda value: value == default_of(key)


def _auto_or_off(value: object) -> bool:
    return value == "auto" or value is False


def _one_at_most(value: object) -> bool:
    return value is None or len(cast("tuple[object, ...]", value)) <= 1


def _without(*names: str) -> Accepts:
    return lambda value: not set(cast("tuple[str, ...]", value)) & set(names)


def _row(name: str, instead: str = "leave it out", accepts: Accepts | None = None) -> NotYet:
    key: Key = tuple(name.split("."))
    return NotYet(key, accepts or _default_alone(key), instead)


_ONE_SERVER = "use 1; server.tensor_parallel_size spreads one server over GPUs"

NOT_YET: tuple[NotYet, ...] = (
    _row("model.torch_compile", "use false"),
    _row("data.eval"),
    _row("rollout.on_stale", "use drop"),
    _row("server.urls", "name one server", _one_at_most),
    _row("server.replicas", _ONE_SERVER),
    _row("server.data_parallel_size", _ONE_SERVER),
    _row("router.enabled", "use auto", _auto_or_off),
    _row("router.policy"),
    _row("router.imbalance_limit"),
    _row("router.load_weight_tokens"),
    _row("router.block_size"),
    _row("router.host"),
    _row("router.port"),
    _row("router.api_key_env", "use server.api_key_env"),
    _row("router.upstream_token_env", "use server.api_key_env"),
    _row("trainer.nnodes", "use 1"),
    _row("trainer.rdzv_endpoint"),
    _row("sync.backend", "use folder", lambda value: value != "nccl"),
    _row("checkpoint.push_to_hub", "use false"),
    _row("checkpoint.hub_model_id"),
    _row("checkpoint.hub_private_repo"),
    _row("tracking.report_to", "use tensorboard", _without("trackio", "wandb")),
    _row("tracking.log_completions", "use false"),
    _row("tracking.num_completions_to_print"),
    _row("tracking.project"),
    _row("tracking.run_name", "use run.name"),
    _row("eval.every_steps"),
    _row("eval.num_generations"),
    _row("eval.temperature"),
    _row("eval.max_prompts"),
)


def refusals(config: Config) -> Iterator[tuple[Key, str]]:
    """The keys whose values are not available yet, each with its message."""
    for row in NOT_YET:
        message = row.refusal(config)
        if message:
            yield row.key, message
