"""`data`: the source of prompts, and the way from a row to a prompt."""

from typing import Literal

from asyncgrpo.config.sections.base import PositiveInt, Section


class DataSource(Section):
    """A dataset and how its rows become prompts."""

    path: str | None = None
    """Hub id, or a local file or folder of json, jsonl, csv, tsv or parquet (relative to the
    recipe). Text stays as it is written; each cell of csv and tsv is text."""
    name: str | None = None
    """Configuration (subset) of a hub dataset."""
    split: str = "train"
    """Split to read; slices such as `train[:1000]` work."""
    prompt_column: str = "prompt"
    """Column that holds the conversation: a list of messages with `role` and `content`."""
    prompt_template: str | None = None
    """Makes the user message from plain columns: `What is {a} + {b}?`; null = use the column. A
    literal brace is written twice: `\\boxed{{}}`."""
    system_prompt: str | None = None
    """System message put before every prompt."""
    max_prompts: PositiveInt | None = None
    """Use only so many prompts, the first of the dataset; null = all."""
    shuffle: bool = True
    """Permute each epoch by (`rollout.seed`, epoch); false = dataset order. Of a stream, each row
    is drawn from the next 1,024."""
    streaming: bool = False
    """Read the dataset while training, from its beginning again after a resume; needs
    `trainer.max_steps` or `max_prompts`."""


class DataConfig(DataSource):
    """The prompts of the run."""

    long_prompts: Literal["fail", "drop"] = "fail"
    """Prompts that leave no room in the context: `fail` = each counts against
    `rollout.failure_budget`; `drop` = they are left out, and counted."""
    eval: DataSource | None = None
    """A held-out dataset, with the same keys; null = none."""
