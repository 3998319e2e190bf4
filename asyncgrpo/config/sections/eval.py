"""`eval`: the held-out split, scored while training."""

from asyncgrpo.config.sections.base import NonNegativeFloat, PositiveInt, Section


class EvalConfig(Section):
    """Evaluation of the served policy."""

    every_steps: PositiveInt | None = None
    """Steps between evaluations; null = none."""
    num_generations: PositiveInt | None = None
    """Rollouts per prompt; null = `rollout.num_generations`."""
    temperature: NonNegativeFloat | None = None
    """Sampling temperature; null = `rollout.temperature`."""
    max_prompts: PositiveInt | None = None
    """Prompts used; null = all of `data.eval`."""
