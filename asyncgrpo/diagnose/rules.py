"""The rules of `diagnose` as rows: conditions of a verdict, its cost, the change.

    side              wait_share   backpressure_share   queue
    generation-bound     high            low            near empty    the trainer waits
    trainer-bound        low             high           near full     generation waits
    staleness-bound      high            high              -          both wait
    balanced             low             low               -          nothing to change

The shares alone choose a row of `SIDES`. The queue makes it more or less certain. Those `LIMITS`
of the side whose conditions hold say what to change.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

WAIT_HIGH = 0.15  # of a step spent waiting for samples
BACKPRESSURE_HIGH = 0.15  # of a step that generation is held back
QUEUE_NEAR_EMPTY = 0.5  # steps of samples ready for the trainer
QUEUE_NEAR_FULL = 0.5  # of max_staleness steps ready for the trainer
SYNC_HIGH = 0.20  # of a step spent on the sync
WITHOUT_SIGNAL_HIGH = 0.8  # of the groups: five are generated for one that is trained
AT_LIMIT = 0.9  # of a limit counts as sitting at it
MOST_OF_A_ROLLOUT = 0.5  # of its seconds, spent outside the servers
SLOWEST_TOOL = "{slowest_tool}"  # in the words of a rule: the run's own, by name

Patch = Mapping[str, Mapping[str, object]]


class Side(StrEnum):
    """The side of the pipeline that sets the pace."""

    GENERATION = "generation-bound"
    TRAINER = "trainer-bound"
    STALENESS = "staleness-bound"
    BALANCED = "balanced"


@dataclass(frozen=True)
class Condition:
    """A quantity against its threshold."""

    quantity: str
    relation: Literal[">=", "<"]
    threshold: float

    def holds(self, value: float) -> bool:
        """True where `value` satisfies it."""
        return value >= self.threshold if self.relation == ">=" else value < self.threshold


@dataclass(frozen=True)
class SideRule:
    """A side, and the conditions that show it."""

    side: Side
    means: str
    when: tuple[Condition, ...]
    supported_by: tuple[Condition, ...] = ()  # makes it more certain where it was measured
    lost: str = ""  # the quantity that is the seconds lost per step
    not_so: str = ""  # said when another side was found


@dataclass(frozen=True)
class Knobs:
    """The settings a change starts from: the run's, or the defaults where unknown."""

    max_staleness: int = 4
    max_concurrent_rollouts: int = 512
    token_budget: int | None = None
    keep_versions: int | None = None  # where servers hold versioned adapters
    gradient_checkpointing: bool = True
    weight_sync_steps: int = 1


@dataclass(frozen=True)
class LimitRule:
    """A limit that holds a side back, and the change to make."""

    side: Side
    name: str
    says: str
    when: tuple[Condition, ...]
    patch: Callable[[Knobs], Patch]  # empty where no key does it; `says` then tells the change
    gain: str  # the metric that bounds the seconds to be gained per step
    share: float = 1.0  # of it that the change can be expected to gain


SIDES = (
    SideRule(
        Side.STALENESS,
        "rollout.max_staleness is too small: generation pauses at the limit, then the trainer "
        "runs out of samples",
        (
            Condition("wait_share", ">=", WAIT_HIGH),
            Condition("backpressure_share", ">=", BACKPRESSURE_HIGH),
        ),
        (),
        "perf/rollout_wait_s",
        "rollout.max_staleness does not hold both sides back",
    ),
    SideRule(
        Side.GENERATION,
        "the trainer waits for samples",
        (
            Condition("wait_share", ">=", WAIT_HIGH),
            Condition("backpressure_share", "<", BACKPRESSURE_HIGH),
        ),
        (Condition("queue_steps", "<", QUEUE_NEAR_EMPTY),),
        "perf/rollout_wait_s",
        "the trainer seldom waits for samples",
    ),
    SideRule(
        Side.TRAINER,
        "generation waits for the trainer",
        (
            Condition("wait_share", "<", WAIT_HIGH),
            Condition("backpressure_share", ">=", BACKPRESSURE_HIGH),
        ),
        (Condition("queue_fill", ">=", QUEUE_NEAR_FULL),),
        "backpressure_s_per_step",
        "generation seldom waits for the trainer",
    ),
    SideRule(
        Side.BALANCED,
        "neither side waits for the other",
        (
            Condition("wait_share", "<", WAIT_HIGH),
            Condition("backpressure_share", "<", BACKPRESSURE_HIGH),
        ),
    ),
)


def _more_staleness(knobs: Knobs) -> Patch:
    staleness = max(2, 2 * knobs.max_staleness)
    patch: dict[str, dict[str, object]] = {"rollout": {"max_staleness": staleness}}
    if knobs.keep_versions is not None:
        patch["sync"] = {"keep_versions": max(knobs.keep_versions, staleness + 1)}
    return patch


LIMITS = (
    *(
        LimitRule(
            side,
            "groups without signal",
            "most groups are generated and dropped, because all their rollouts got the same "
            "reward: the prompts are too easy or too hard by now, or rollout.rewards do not tell "
            "the rollouts apart",
            (Condition("frac_reward_zero_std", ">=", WITHOUT_SIGNAL_HIGH),),
            lambda _: {},
            "perf/rollout_wait_s",
            0.8,
        )
        for side in (Side.GENERATION, Side.STALENESS)
    ),
    LimitRule(
        Side.GENERATION,
        "too few rollouts",
        "as many rollouts run as max_concurrent_rollouts allows, and the KV cache has room: more "
        "servers would not help",
        (
            Condition("concurrency_at_limit", ">=", AT_LIMIT),
            Condition("rollout/vllm_kv_cache_usage_frac", "<", 0.6),
        ),
        lambda knobs: {"rollout": {"max_concurrent_rollouts": 2 * knobs.max_concurrent_rollouts}},
        "perf/rollout_wait_s",
        0.5,
    ),
    LimitRule(
        Side.GENERATION,
        "scoring",
        "finished groups wait to be scored: make the rewards faster, or asynchronous",
        (Condition("score_wait_share", ">=", 0.25),),
        lambda _: {},
        "rollout/score_wait_s",
    ),
    LimitRule(
        Side.GENERATION,
        "tools",
        "rollouts spend most of their time in tools, the most in "
        f"{SLOWEST_TOOL}: make it faster, keep what it found, or give it up sooner "
        "(rollout.tool_timeout_s). While one waits others can run: raise "
        "rollout.max_concurrent_rollouts, and make a tool that waits for a service `async`",
        (Condition("tools_share", ">=", MOST_OF_A_ROLLOUT),),
        lambda _: {},
        "perf/rollout_wait_s",
        0.5,
    ),
    LimitRule(
        Side.GENERATION,
        "environments",
        "rollouts spend most of their time in the environment's reset and get_reward: make them "
        "faster, or give them up sooner (rollout.environment_timeout_s). While one waits others "
        "can run: raise rollout.max_concurrent_rollouts",
        (Condition("environments_share", ">=", MOST_OF_A_ROLLOUT),),
        lambda _: {},
        "perf/rollout_wait_s",
        0.5,
    ),
    LimitRule(
        Side.GENERATION,
        "answers cut off",
        "many rollouts run into rollout.max_completion_length: they cost the most and are scored "
        "0. Raise it if answers need the room; otherwise prompt or reward for shorter ones",
        (Condition("completions/clipped_ratio", ">=", 0.3),),
        lambda _: {},
        "perf/rollout_wait_s",
        0.5,
    ),
    LimitRule(
        Side.GENERATION,
        "server load",
        "the servers generate as fast as they can: give them more or faster devices "
        "(server.devices, server.tensor_parallel_size), or ask for less: shorter completions, "
        "fewer sampler logprobs",
        (),
        lambda _: {},
        "perf/rollout_wait_s",
        0.5,
    ),
    LimitRule(
        Side.STALENESS,
        "max_staleness",
        "let generation run further ahead; the samples get staler in return",
        (),
        _more_staleness,
        "perf/rollout_wait_s",
        0.5,
    ),
    LimitRule(
        Side.TRAINER,
        "weight sync",
        "the sync takes a large part of each step",
        (Condition("sync_share", ">=", SYNC_HIGH),),
        lambda knobs: {"sync": {"weight_sync_steps": 2 * knobs.weight_sync_steps}},
        "perf/weight_sync_s",
        0.5,
    ),
    LimitRule(
        Side.TRAINER,
        "short rows",
        "a row holds little more than one sample, so its prefix is forwarded again and again",
        (Condition("batch/samples_per_row", "<", 2.0),),
        lambda knobs: (
            {"trainer": {"token_budget": 2 * knobs.token_budget}} if knobs.token_budget else {}
        ),
        "perf/fwd_bwd_s",
        0.3,
    ),
    LimitRule(
        Side.TRAINER,
        "recomputation",
        "backward takes more than twice the forward: activations are computed a second time",
        (
            Condition("backward_ratio", ">=", 3.0),
            Condition("gradient_checkpointing", ">=", 1.0),
        ),
        lambda _: {"model": {"gradient_checkpointing": False}},
        "perf/fwd_s",
    ),
    LimitRule(
        Side.TRAINER,
        "compute",
        "forward and backward set the pace: give training more or faster devices "
        "(trainer.devices, one process each), or generate less for each step",
        (),
        lambda _: {},
        "perf/fwd_bwd_s",
        0.5,
    ),
)
