"""The whole configuration, one frozen tree; short sections stand here too.

Config ── model data rollout server router trainer loss sync checkpoint tracking eval run
"""

from typing import Annotated, Literal, cast

from pydantic import BeforeValidator, Field, Strict

from asyncgrpo.config.problems import Key
from asyncgrpo.config.sections.base import (
    Auto,
    EnvironmentVariable,
    NonNegativeFloat,
    Port,
    PositiveFloat,
    PositiveInt,
    Section,
    as_list,
)
from asyncgrpo.config.sections.data import DataConfig
from asyncgrpo.config.sections.loss import LossConfig
from asyncgrpo.config.sections.model import ModelConfig
from asyncgrpo.config.sections.rollout import RolloutConfig
from asyncgrpo.config.sections.server import ServerConfig
from asyncgrpo.config.sections.trainer import TrainerConfig


class RouterConfig(Section):
    """The reverse proxy that makes several servers look like one."""

    enabled: Auto | bool = "auto"
    """`auto` = with several replicas, or where requests need another key."""
    policy: Literal["cost", "prefix_affinity", "least_loaded", "round_robin"] = "cost"
    """The rule that chooses a replica for a request."""
    imbalance_limit: PositiveInt = 8
    """Most requests in flight that a replica with the prompt may have above the idlest one."""
    load_weight_tokens: PositiveInt = 40
    """Prompt tokens that count as much as one more request in flight."""
    block_size: Auto | PositiveInt = "auto"
    """Tokens per KV block; `auto` = the server's."""
    host: str = "127.0.0.1"
    """Address to bind. Any but loopback needs `api_key_env`."""
    port: Auto | Port = "auto"
    """Port; `auto` = a free one."""
    api_key_env: EnvironmentVariable | None = None
    """Name of the environment variable that holds the key clients must send."""
    upstream_token_env: EnvironmentVariable | None = None
    """Name of the environment variable that holds the token sent to the servers."""


class SyncConfig(Section):
    """The sync of weights, and its attestation."""

    backend: Auto | Literal["adapter", "folder", "nccl"] = "auto"
    """`adapter` = LoRA files under versioned names; `folder` = whole weights through files."""
    weight_sync_steps: PositiveInt = 1
    """Optimizer steps between two syncs."""
    attest: bool = True
    """After each sync, compare the server's logprobs of a test prompt with the trainer's."""
    attest_tolerance: PositiveFloat | None = None
    """Largest mean difference of those logprobs; above it the run stops; null = by dtype."""
    keep_versions: PositiveInt | None = None
    """Published versions kept; null = `rollout.max_staleness` + 1."""
    path: str | None = None
    """Folder that trainer and servers share; null = `served` in the run directory."""


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


Trackers = Annotated[
    tuple[Literal["tensorboard", "trackio", "wandb"], ...],
    Strict(strict=False),
    BeforeValidator(as_list),
]


class TrackingConfig(Section):
    """Log windows and trackers."""

    logging_steps: PositiveInt = 1
    """Steps per log window; `metrics.jsonl` gets one line for each."""
    report_to: Trackers = ()
    """Trackers that also get the metrics: one name or a list."""
    log_completions: bool = False
    """Print completions with their rewards at every log window."""
    num_completions_to_print: PositiveInt | None = None
    """How many of them; null = all."""
    project: str | None = None
    """Project name in trackers that have projects."""
    run_name: str | None = None
    """Name in trackers; null = `run.name`."""


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


class RunConfig(Section):
    """The run as a whole."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = None
    """Name of the run; null = the recipe's file name."""
    dir: str | None = None
    """Run directory, relative to the working directory; null = `runs/<name>`."""
    grace_s: PositiveFloat = 30.0
    """Seconds a process gets to end by itself before it is killed."""


class Config(Section):
    """A checked recipe; `derive` fills in its open values."""

    model: ModelConfig
    """The policy that is trained."""
    data: DataConfig = DataConfig()
    """The prompts."""
    rollout: RolloutConfig = RolloutConfig()
    """Generation and scoring of rollouts."""
    server: ServerConfig = ServerConfig()
    """The vLLM servers."""
    router: RouterConfig = RouterConfig()
    """The reverse proxy in front of several servers."""
    trainer: TrainerConfig = TrainerConfig()
    """The training loop and its processes."""
    loss: LossConfig = LossConfig()
    """The loss."""
    sync: SyncConfig = SyncConfig()
    """The sync of new weights to the servers."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
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


def default_of(key: Key) -> object:
    """The value of `section.leaf` where a recipe leaves it out."""
    section, name = key
    model = cast("type[Section]", Config.model_fields[str(section)].annotation)
    return model.model_fields[str(name)].default


def with_leaf(config: Config, key: Key, value: object) -> Config:
    """The configuration with another value of `section.leaf`, which is not checked again."""
    section, name = key
    changed: Section = dict(config)[str(section)].model_copy(update={str(name): value})
    return config.model_copy(update={str(section): changed})
