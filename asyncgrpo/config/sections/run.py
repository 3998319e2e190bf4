"""`run`: the run's name, its directory, and how it ends."""

from typing import Annotated

from pydantic import Field

from asyncgrpo.config.sections.base import PositiveFloat, Section


class RunConfig(Section):
    """The run as a whole."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = None
    """Name of the run; null = the recipe's file name."""
    dir: str | None = None
    """Run directory, relative to the working directory; null = `runs/<name>`."""
    grace_s: PositiveFloat = 30.0
    """Seconds a process gets to end by itself before it is killed."""
