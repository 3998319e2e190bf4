"""Metrics of tools and environments."""

from asyncgrpo.metrics.metric import Metric

TOOLS = (
    Metric(
        "tools/call_frequency",
        "How often does a rollout call tools?",
        "It falls to 0 while reward stands still: the policy gives its tools up.",
        "calls",
    ),
    Metric(
        "tools/failure_frequency",
        "Which part of the calls fails: no such tool, unreadable, or the tool raised? NaN where "
        "none was made",
        "High and not falling: the policy does not learn from the errors it is told.",
        "0 to 1",
    ),
    Metric(
        "tools/latency_s",
        "How long does a call take?",
        "A large part of rollout/duration_s: tools limit generation.",
    ),
    Metric("tools/{tool}/latency_s", "How long does a call of this tool take?"),
    Metric("tools/{tool}/call_count", "How often was this tool called?", unit="calls"),
    Metric(
        "tools/{tool}/failure_count",
        "How often did this tool raise, refuse its arguments or time out?",
        unit="calls",
    ),
    Metric(
        "tools/unknown_name_count",
        "How often was a tool called that does not exist?",
        "Above 0 after the first steps: the chat template may not show the tools.",
        "calls",
    ),
    Metric(
        "tools/malformed_count",
        "How many calls could not be read?",
        "High: the policy writes calls in another style than its chat template shows.",
        "calls",
    ),
    Metric(
        "tools/parallel_calls_mean",
        "How many calls has a reply that calls tools?",
        unit="calls",
    ),
    Metric(
        "tools/loop_exhausted_frac",
        "Which part of the rollouts is cut at max_tool_calling_iterations, still calling?",
        "Above 0.1: conversations end before they are answered.",
    ),
    Metric(
        "tools/context_full_frac",
        "Which part of the rollouts is cut, as the results of tools filled the context?",
        "Above 0.1: raise server.max_model_len, or return less from the tools.",
    ),
)

ENVIRONMENTS = (
    Metric(
        "env/reset_s",
        "How long does an environment's reset take?",
        "A large part of rollout/duration_s: environments limit generation.",
    ),
    Metric("env/reward_s", "How long does an environment's get_reward take?"),
)

TOOL_METRICS = (*TOOLS, *ENVIRONMENTS)
