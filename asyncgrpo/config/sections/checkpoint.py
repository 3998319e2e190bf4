"""`checkpoint`: what is saved while training, and how often."""

from asyncgrpo.config.sections.base import PositiveInt, Section


class CheckpointConfig(Section):
    """Checkpoints in Hugging Face format, with what `resume` needs."""

    save_steps: PositiveInt | None = 500
    """Steps between checkpoints; null = none, and needs `--no-checkpoints`."""
    save_total_limit: PositiveInt | None = None
    """Newest checkpoints kept; null = all."""
    push_to_hub: bool = False
    """Upload checkpoints."""
    hub_model_id: str | None = None
    """Repository to upload to."""
    hub_private_repo: bool | None = None
    """Make that repository private."""
