"""Metrics of the pipeline: generation, queue, rows, step time, sync, ledger."""

from asyncgrpo.metrics.metric import Metric

ROLLOUT = (
    Metric("rollout/duration_s", "How long does one rollout take, from dispatch to its end?"),
    Metric(
        "rollout/generated_tokens_per_s", "How fast does the sampler generate, for all workers?"
    ),
    Metric(
        "rollout/concurrency",
        "How many rollouts are running, in all workers?",
        "At rollout/concurrency_cap: the server's load limits; at max_concurrent_rollouts: "
        "that key does. Above vllm_running_requests: answers are being built.",
        "rollouts",
    ),
    Metric(
        "rollout/concurrency_cap",
        "How many rollouts does the server's load allow at once, in all workers?",
        "It stays far below rollout.max_concurrent_rollouts.",
        "rollouts",
    ),
    Metric("rollout/turns_mean", "How many turns has a rollout?", unit="turns"),
    Metric("rollout/turns_max", "How many turns has the longest rollout?", unit="turns"),
    Metric(
        "rollout/samples_per_rollout",
        "How many samples does a rollout give?",
        "Above 1: rollouts fork. Below 1: some have no trained token.",
        "samples",
    ),
    Metric("rollout/fork_frac", "Which part of the turns does not extend the tokens held?"),
    Metric(
        "rollout/drift_tokens_mean", "How many held tokens does a turn render again?", unit="tokens"
    ),
    Metric("rollout/drift_tokens_max", "The same, of the worst turn", unit="tokens"),
    Metric(
        "rollout/score_queue_size",
        "How many finished groups wait for their rewards, in all workers?",
        "It grows: the reward functions are slower than generation.",
        "groups",
    ),
    Metric(
        "rollout/queue_size",
        "How many samples wait for the trainer?",
        "Near 0 with a high perf/rollout_wait_s: generation limits.",
        "samples",
    ),
    Metric("rollout/score_s", "How long does it take to score a group?"),
    Metric("rollout/score_wait_s", "How long does a group wait to be scored?"),
    Metric("rollout/score_block_s", "How long does generation wait for scoring?"),
    Metric(
        "rollout/backpressure_s",
        "How long does a group wait to start because the allowance is used up?",
        "High: training limits, or max_staleness is too tight.",
    ),
    Metric(
        "rollout/vllm_retry_count",
        "How many requests to the server were tried again?",
        "Above 0: the server fails or is overloaded; its log says why.",
        "requests",
        always=True,
    ),
    Metric(
        "rollout/vllm_kv_cache_usage_frac",
        "How full is the server's KV cache?",
        "Above 0.8: running requests are preempted.",
    ),
    Metric(
        "rollout/vllm_running_requests",
        "How many requests is the server decoding?",
        unit="requests",
    ),
    Metric(
        "rollout/vllm_queued_requests",
        "How many requests has the server accepted and not begun?",
        "Above 0 all the time: the server is full.",
        "requests",
    ),
    Metric(
        "rollout/vllm_preemption_count",
        "How many requests did the server preempt?",
        "More than a sync's own: every sync preempts all that is running.",
        "requests",
    ),
)

SAMPLES = (
    Metric(
        "sample/forwarded_tokens_mean", "How long is a sample, its prompt included?", unit="tokens"
    ),
    Metric("sample/forwarded_tokens_max", "How long is the longest sample?", unit="tokens"),
    Metric(
        "sample/trained_tokens_mean", "How many tokens of a sample are in the loss?", unit="tokens"
    ),
    Metric("sample/time_in_queue_s", "How long does a sample wait for the trainer?"),
    Metric(
        "sample/staleness_mean",
        "How many weight updates old were the samples when trained, on average?",
        "Near rollout.max_staleness: generation is as far ahead as it may be.",
        "versions",
    ),
    Metric(
        "sample/staleness_max",
        "How many weight updates old was the oldest sample trained?",
        unit="versions",
    ),
    Metric(
        "sample/dropped_stale_count",
        "How many samples were too stale to train?",
        "Above 0: what was generated for them is wasted.",
        "samples",
        always=True,
    ),
    Metric(
        "sample/dropped_error_count",
        "How many samples had logprobs, lengths or tokens that cannot be trained?",
        "Above 0: the server or the loop answers wrongly; the trainer's log says what.",
        "samples",
        always=True,
    ),
)

BATCH = (
    Metric(
        "batch/forwarded_tokens_per_step", "How many tokens does a step forward?", unit="tokens"
    ),
    Metric("batch/trained_tokens_per_step", "How many tokens does a step train?", unit="tokens"),
    Metric("batch/samples_per_step", "How many samples does a step train?", unit="samples"),
    Metric("batch/groups_per_step", "From how many groups are they?", unit="groups"),
    Metric(
        "batch/microbatches_per_step", "How many micro-batches has a step?", unit="micro-batches"
    ),
    Metric("batch/masked_token_frac", "Which part of the forwarded tokens is not trained?"),
    Metric(
        "batch/samples_per_row",
        "How many samples share a row?",
        "Near 1: trainer.token_budget holds one sample only.",
        "samples",
    ),
    Metric("batch/row_tokens_mean", "How many tokens has a row?", unit="tokens"),
    Metric("batch/row_tokens_max", "How many tokens has the longest row?", unit="tokens"),
    Metric(
        "batch/row_fill_frac",
        "Which part of trainer.token_budget do rows use?",
        "Below 0.5: the budget is larger than what arrives.",
    ),
    Metric(
        "batch/row_imbalance",
        "How much dearer is the dearest row of a micro-batch than the mean?",
        "Above 1.2: the other ranks wait for one.",
        "ratio",
    ),
    Metric(
        "batch/packing_ratio",
        "How many tokens does sharing prefixes make of each forwarded one?",
        unit="ratio",
    ),
    Metric("batch/pad_frac", "Which part of a transferred row is padding?"),
    Metric(
        "batch/dropped_oversize_count",
        "How many samples did not fit trainer.token_budget?",
        "Above 0: the longest answers never train.",
        "samples",
        always=True,
    ),
)

PERF = (
    Metric("perf/step_s", "How long does a step take, waiting and sync included?"),
    Metric("perf/fwd_bwd_s", "How long do forward and backward take in a step?"),
    Metric(
        "perf/fwd_s",
        "How long does the forward take in a step?",
        "Below a third of perf/fwd_bwd_s: activations are computed twice.",
    ),
    Metric("perf/optimizer_s", "How long does the optimizer take in a step?"),
    Metric(
        "perf/rollout_wait_s",
        "How long does a step wait for samples?",
        "A large part of perf/step_s: generation limits.",
    ),
    Metric(
        "perf/weight_sync_s",
        "How long does a weight sync take, on the training side?",
        "A large part of perf/step_s: raise sync.weight_sync_steps.",
    ),
    Metric("perf/weight_sync_pause_s", "How much of it waits for the servers to pause?"),
    Metric("perf/weight_sync_barrier_s", "How much of it waits for other ranks?"),
    Metric("perf/weight_sync_transfer_s", "How much of it moves weights?"),
    Metric(
        "perf/fwd_bwd_forwarded_tokens_per_s",
        "How fast does training forward tokens while it computes?",
    ),
    Metric(
        "perf/wall_clock_forwarded_tokens_per_s",
        "How fast does training forward tokens, all waiting included?",
    ),
    Metric(
        "perf/wall_clock_trained_tokens_per_s",
        "How fast does training train tokens, all waiting included?",
    ),
    Metric(
        "perf/fwd_bwd_mfu",
        "Which part of the GPUs' peak do forward and backward reach? FLOPs of the model, with "
        "shared tokens once, real keys and active experts; none for recomputed activations. "
        "Absent on hardware or with a model whose figures are not known.",
        "Below 0.2 with full rows: small rows or layers, or gradient checkpointing.",
    ),
    Metric(
        "perf/wall_clock_mfu",
        "The same, all waiting included?",
        "Far below perf/fwd_bwd_mfu: the trainer waits; `asyncgrpo diagnose` says for what.",
    ),
)

SYNC = (
    Metric("sync/publish_s", "How long from a snapshot until every server serves it, attested?"),
    Metric(
        "sync/attest_logp_diff",
        "How far is what is served from what was published?",
        "Above sync.attest_tolerance the run ends.",
        "nats",
    ),
    Metric(
        "sync/coalesced_count",
        "How many versions were overtaken before they were published?",
        "Above 0: syncs take longer than sync.weight_sync_steps steps.",
        "versions",
        always=True,
    ),
)

LEDGER = (
    Metric(
        "ledger/{state}_count",
        "How many prompts reached this state in the window: queued, trained or dropped?",
        "dropped_too_long above 0: prompts left out by data.long_prompts, of those dropped; "
        "dropped_all_masked: groups whose every token a loop masked.",
        "prompts",
    ),
)

PIPELINE_METRICS = (*ROLLOUT, *SAMPLES, *BATCH, *PERF, *SYNC, *LEDGER)
