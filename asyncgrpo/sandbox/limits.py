"""The limits of a program, from the recipe to the kernel.

SandboxLimits --json--> check --setrlimit--> candidate
"""

from dataclasses import dataclass

OPEN_FILES = 64
FILE_MB = 8  # largest file; unlinked files can hide OPEN_FILES of them at most
FOLDER_MB = 64  # all files of its folder together


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """The time, memory and output that one program may use."""

    seconds: float = 5.0  # wall time, of each run
    cpu_seconds: float = 5.0
    memory_mb: int = 1024  # address space, Python itself included
    output_kb: int = 1024  # of stdout
    without_landlock: bool = False  # on kernels that lack it: it may read all the worker's files
