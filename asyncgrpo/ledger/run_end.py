"""The end of a run: `trainer.max_steps`, or the last prompt of `trainer.num_train_epochs`."""

from asyncgrpo.config import Config
from asyncgrpo.ledger.state_file import RolloutState


def end_ordinal(num_epochs: float, num_prompts: int) -> int:
    """The first ordinal that `num_epochs` epochs do not ask for."""
    return max(round(num_epochs * num_prompts), 1)


def reached_end(config: Config, state: RolloutState) -> str | None:
    """The limit that the run has reached; None where there is more to train."""
    trainer = config.trainer
    if trainer.max_steps > 0:
        if state.step < trainer.max_steps:
            return None
        return f"step {state.step} of trainer.max_steps {trainer.max_steps}"
    resolved = state.epoch * state.num_prompts + state.prompt_index
    if resolved < end_ordinal(trainer.num_train_epochs, state.num_prompts):
        return None
    return f"the end of epoch {trainer.num_train_epochs:g} (trainer.num_train_epochs)"


def longer(config: Config) -> str:
    """The override that lets a run at its end go on as long again."""
    if config.trainer.max_steps > 0:
        return f"trainer.max_steps={2 * config.trainer.max_steps}"
    return f"trainer.num_train_epochs={2 * config.trainer.num_train_epochs:g}"
