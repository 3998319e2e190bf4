"""The worker's metrics of tools: each call, and each rollout that could have made one.

Calls of rollouts that were lost count too. Rates are over all rollouts, whether they called a
tool or not, and whether their group is trained or dropped.
"""

from asyncgrpo.metrics.values import Recorder
from asyncgrpo.rollout.group import Rollout
from asyncgrpo.rollout.sampling.context import RolloutContext
from asyncgrpo.rollout.tools.tools import CallOutcome, ToolUse


def observe_tool_calls(recorder: Recorder, use: ToolUse) -> None:
    """What a rollout called."""
    recorder.record_all("tools/parallel_calls_mean", use.calls_per_reply)
    for call in use.calls:
        match call.outcome:
            case CallOutcome.UNKNOWN:
                recorder.record("tools/unknown_name_count", 1)
            case CallOutcome.MALFORMED:
                recorder.record("tools/malformed_count", 1)
            case CallOutcome.DONE | CallOutcome.FAILED | CallOutcome.TIMED_OUT:
                recorder.record("tools/latency_s", call.duration_s)
                recorder.record(f"tools/{call.name}/latency_s", call.duration_s)
                recorder.record(f"tools/{call.name}/call_count", 1)
                recorder.record(f"tools/{call.name}/failure_count", float(call.failed))


def observe_tool_rates(recorder: Recorder, rollout: Rollout, context: RolloutContext) -> None:
    """How often a rollout that came to its end called tools; nothing where it has none."""
    calls, failures = rollout.tool_call_count, rollout.tool_failure_count
    if not context.tools and not calls:
        return
    recorder.record("tools/call_frequency", calls)
    recorder.record("tools/failure_frequency", failures / calls if calls else 0.0, weight=calls)
    recorder.record("tools/loop_exhausted_frac", float(context.tool_use.exhausted))
    for name in ("tools/unknown_name_count", "tools/malformed_count"):
        recorder.record(name, 0)  # none is an observation too
