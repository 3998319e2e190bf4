"""The whole configuration: one frozen tree.

Config ── model data rollout server router trainer loss sync checkpoint tracking eval run
"""

from asyncgrpo.config.problems import Key
from asyncgrpo.config.sections.base import Section
from asyncgrpo.config.sections.checkpoint import CheckpointConfig
from asyncgrpo.config.sections.data import DataConfig
from asyncgrpo.config.sections.eval import EvalConfig
from asyncgrpo.config.sections.loss import LossConfig
from asyncgrpo.config.sections.model import ModelConfig
from asyncgrpo.config.sections.rollout import RolloutConfig
from asyncgrpo.config.sections.router import RouterConfig
from asyncgrpo.config.sections.run import RunConfig
from asyncgrpo.config.sections.server import ServerConfig
from asyncgrpo.config.sections.sync import SyncConfig
from asyncgrpo.config.sections.tracking import TrackingConfig
from asyncgrpo.config.sections.trainer import TrainerConfig


class Config(Section):
    """A recipe, checked; with every value filled in once derived."""

    model: ModelConfig
    """The policy that is trained."""
    data: DataConfig = DataConfig()
    """Where prompts come from."""
    rollout: RolloutConfig = RolloutConfig()
    """How rollouts are generated and scored."""
    server: ServerConfig = ServerConfig()
    """The vLLM servers."""
    router: RouterConfig = RouterConfig()
    """The reverse proxy in front of several servers."""
    trainer: TrainerConfig = TrainerConfig()
    """The training loop and its processes."""
    loss: LossConfig = LossConfig()
    """The loss."""
    sync: SyncConfig = SyncConfig()
    """How new weights reach the servers."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """What is saved, and how often."""
    tracking: TrackingConfig = TrackingConfig()
    """Log windows and trackers."""
    eval: EvalConfig = EvalConfig()
    """Evaluation while training."""
    run: RunConfig = RunConfig()
    """The run's name and directory."""


def leaf(config: Config, key: Key) -> object:
    """The value of `section.leaf`."""
    section, name = key
    return dict(dict(config)[str(section)])[str(name)]


def with_leaf(config: Config, key: Key, value: object) -> Config:
    """The configuration with another value of `section.leaf`, which is not checked again."""
    section, name = key
    changed: Section = dict(config)[str(section)].model_copy(update={str(name): value})
    return config.model_copy(update={str(section): changed})
