"""What the tree knows but this version does not do: refused by name, never silently ignored.

key -> what is accepted by now, and what to write instead
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from asyncgrpo.config.problems import Key, dotted, shown
from asyncgrpo.config.sections.tree import Config, leaf

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


def _only(*values: object) -> Accepts:
    return lambda value: value in values


def _off(value: object) -> bool:
    return value is False


def _auto_or_off(value: object) -> bool:
    return value == "auto" or value is False


def _at_most(limit: float) -> Accepts:
    return lambda value: cast("float", value) <= limit


def _no_more_than(count: int) -> Accepts:
    return lambda value: value is None or len(cast("tuple[object, ...]", value)) <= count


def _without(*names: str) -> Accepts:
    return lambda value: not set(cast("tuple[str, ...]", value)) & set(names)


def _row(key: str, accepts: Accepts, instead: str) -> NotYet:
    return NotYet(tuple(key.split(".")), accepts, instead)


_LEAVE_OUT = "leave it out"
_ONE_SERVER = "use 1; server.tensor_parallel_size spreads one server over GPUs"

NOT_YET: tuple[NotYet, ...] = (
    _row("model.torch_compile", _off, "use false"),
    _row("data.eval", _only(None), _LEAVE_OUT),
    _row("rollout.repetition_penalty", _only(1.0), "use 1.0: the trainer does not apply it"),
    _row("rollout.on_stale", _only("drop"), "use drop"),
    _row("server.urls", _no_more_than(1), "name one server"),
    _row("server.replicas", _at_most(1), _ONE_SERVER),
    _row("server.data_parallel_size", _at_most(1), _ONE_SERVER),
    _row("router.enabled", _auto_or_off, "use auto"),
    _row("router.policy", _only("cost"), _LEAVE_OUT),
    _row("router.imbalance_limit", _only(8), _LEAVE_OUT),
    _row("router.load_weight_tokens", _only(40), _LEAVE_OUT),
    _row("router.block_size", _only("auto"), _LEAVE_OUT),
    _row("router.host", _only("127.0.0.1"), _LEAVE_OUT),
    _row("router.port", _only("auto"), _LEAVE_OUT),
    _row("router.api_key_env", _only(None), "use server.api_key_env"),
    _row("router.upstream_token_env", _only(None), "use server.api_key_env"),
    _row("trainer.nnodes", _at_most(1), "use 1"),
    _row("trainer.rdzv_endpoint", _only(None), _LEAVE_OUT),
    _row("sync.backend", _only("auto", "adapter", "folder"), "use folder"),
    _row("checkpoint.push_to_hub", _off, "use false"),
    _row("checkpoint.hub_model_id", _only(None), _LEAVE_OUT),
    _row("checkpoint.hub_private_repo", _only(None), _LEAVE_OUT),
    _row("tracking.report_to", _without("trackio", "wandb"), "use tensorboard"),
    _row("tracking.log_completions", _off, "use false"),
    _row("tracking.num_completions_to_print", _only(None), _LEAVE_OUT),
    _row("tracking.project", _only(None), _LEAVE_OUT),
    _row("tracking.run_name", _only(None), "use run.name"),
    _row("eval.every_steps", _only(None), _LEAVE_OUT),
    _row("eval.num_generations", _only(None), _LEAVE_OUT),
    _row("eval.temperature", _only(None), _LEAVE_OUT),
    _row("eval.max_prompts", _only(None), _LEAVE_OUT),
)


def refusals(config: Config) -> Iterator[tuple[Key, str]]:
    """The keys whose values are not available yet, each with its message."""
    for row in NOT_YET:
        message = row.refusal(config)
        if message:
            yield row.key, message
