"""Metrics of the policy: completions, rewards, sampler against policy, loss."""

from asyncgrpo.metrics.metric import Metric

COMPLETIONS = (
    Metric(
        "completions/mean_length", "How long are rollouts, tool results left out?", unit="tokens"
    ),
    Metric("completions/min_length", "How long is the shortest rollout?", unit="tokens"),
    Metric(
        "completions/max_length",
        "How long is the longest rollout?",
        "It sits at rollout.max_completion_length.",
        "tokens",
    ),
    Metric(
        "completions/mean_terminated_length",
        "How long are the rollouts that ended by themselves?",
        unit="tokens",
    ),
    Metric(
        "completions/min_terminated_length",
        "How long is the shortest rollout that ended by itself?",
        unit="tokens",
    ),
    Metric(
        "completions/max_terminated_length",
        "How long is the longest rollout that ended by itself?",
        unit="tokens",
    ),
    Metric(
        "completions/clipped_ratio",
        "Which part of the rollouts did not end by itself?",
        "Above 0.1: answers are cut before they are given, and a cut answer is scored 0.",
        "0 to 1",
    ),
    Metric(
        "completions/duplicate_frac",
        "Which part of the rollouts repeats another of its group token for token?",
        "Near (G-1)/G: sampling is not random. A slow rise while entropy falls: collapse.",
    ),
)

REWARDS = (
    Metric(
        "reward",
        "How good is the policy, over all scored rollouts, dropped groups included?",
        "It falls, or stays at the lowest reward.",
        "reward",
    ),
    Metric("rewards/{name}/mean", "How good is the policy by this reward alone?", unit="reward"),
    Metric(
        "rewards/{name}/group_std",
        "How far apart does this reward put the rollouts of a group?",
        "0: it tells nothing apart.",
        "reward",
    ),
    Metric(
        "reward_group_std",
        "How far apart are the total rewards of a trained group?",
        "It shrinks towards 0: rollout.advantage group_std divides by it.",
        "reward",
    ),
    Metric(
        "reward_trained",
        "What is the mean reward of the samples that a step trained?",
        "Below reward: groups that are solved have no signal, and are not trained.",
        "reward",
    ),
    Metric(
        "reward_kept", "What is the mean reward of the groups scored with signal?", unit="reward"
    ),
    Metric(
        "reward_dropped",
        "At which reward are the groups without signal stuck?",
        "Near the lowest reward: prompts too hard, or the reward does not read the answers.",
        "reward",
    ),
    Metric(
        "frac_reward_zero_std",
        "Which part of the groups has no signal and is dropped?",
        "High: most of what is generated trains nothing.",
        "0 to 1",
    ),
)

SAMPLING = (
    Metric(
        "sampling/sampling_logp_difference/mean",
        "How far apart are sampler and policy, per trained token?",
        "Above 1e-3 in float32 or 0.02 in bfloat16 at staleness 0: they are different models.",
        "nats",
    ),
    Metric(
        "sampling/sampling_logp_difference/max",
        "How far apart are sampler and policy at the worst token?",
        unit="nats",
    ),
    Metric(
        "sampling/importance_sampling_ratio/min", "What is the smallest ratio policy / sampler?"
    ),
    Metric(
        "sampling/importance_sampling_ratio/mean",
        "How much more likely does the trained model find the sampled tokens than the model that "
        "sampled them? The mean ratio policy / sampler; it should stay near 1.",
        "Away from 1: truncated sampling, another template or dtype, or too stale.",
    ),
    Metric("sampling/importance_sampling_ratio/max", "What is the largest ratio policy / sampler?"),
    Metric(
        "sampling/masked_mean",
        "Which part of the trained tokens does the ratio's range leave out of the loss?",
        "Above 0.01: much of what was generated does not train.",
        "0 to 1",
    ),
    Metric(
        "sampling/sampler_mass",
        "How much probability do the sampler's reported tokens cover?",
        "Below 0.9: raise loss.num_sampler_logprobs.",
        "0 to 1",
    ),
    Metric(
        "sampling/by_staleness/{k}/logp_difference",
        "How far apart are sampler and policy for samples of staleness k?",
        "High at k = 0 is mismatch; growing with k is staleness.",
        "nats",
    ),
    Metric(
        "sampling/kl_k3", "How large is KL(sampler || policy), by the k3 estimate?", unit="nats"
    ),
    Metric(
        "sampling/ess_frac",
        "Which part of the trained tokens counts, after weighting by the ratio?",
        "Below 0.9: few tokens carry the update.",
    ),
)

LEARNING = (
    Metric("loss", "What is the loss minimised? Its height says little; watch reward."),
    Metric(
        "grad_norm",
        "How long is the gradient before clipping?",
        "Many times its usual value, or always above trainer.max_grad_norm.",
    ),
    Metric(
        "skipped_step_count",
        "How many steps changed nothing, because loss or gradient was not finite?",
        "Above 0: the learning rate is too high, or the precision too low.",
        "steps",
        always=True,
    ),
    Metric("learning_rate", "Which learning rate was used?"),
    Metric(
        "entropy",
        "How undecided is the policy, per trained token?",
        "It falls towards 0 while reward stands still: collapse.",
        "nats",
    ),
    Metric(
        "aux_loss",
        "How unevenly does the router of a mixture of experts use them, before "
        "model.router_aux_loss_coef?",
        "It rises from num_experts_per_tok, which is even use: experts are left unused.",
    ),
    Metric("num_tokens", "How many tokens were forwarded since the start?", unit="tokens"),
    Metric(
        "clip_ratio/region_mean",
        "Which part of the trained tokens is outside the trust region?",
        "Above 0.2: updates are large, or samples stale.",
        "0 to 1",
    ),
    Metric("clip_ratio/low_mean", "Which part is below the region?", unit="0 to 1"),
    Metric("clip_ratio/low_min", "The same, of the sample with the least", unit="0 to 1"),
    Metric("clip_ratio/high_mean", "Which part is above the region?", unit="0 to 1"),
    Metric("clip_ratio/high_max", "The same, of the sample with the most", unit="0 to 1"),
)

LEARNING_METRICS = (*COMPLETIONS, *REWARDS, *SAMPLING, *LEARNING)
