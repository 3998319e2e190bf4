"""Confines the calling process for good; the table is in `sandbox/__init__.py`.

limits -> no_new_privs -> no capabilities -> dies with its parent -> Landlock -> seccomp
"""

import math
import os
import resource
import signal

from asyncgrpo.sandbox import landlock, seccomp
from asyncgrpo.sandbox.kernel import PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, drop_capabilities, prctl
from asyncgrpo.sandbox.limits import FILE_MB, OPEN_FILES, SandboxLimits

MB = 1 << 20


def missing(*, without_landlock: bool) -> str | None:
    """The reason why this machine cannot confine programs; None where it can."""
    system, machine = os.uname().sysname, os.uname().machine
    if system != "Linux" or machine not in seccomp.ARCHITECTURES:
        return (
            f"code_reward confines programs on Linux (x86_64, aarch64), not on {system} {machine}"
        )
    if landlock.version() == 0 and not without_landlock:
        return (
            "this kernel has no Landlock (Linux 5.13 or later, enabled), which keeps the programs "
            "of code_reward from reading the machine's files. Use another machine; or set "
            "`without_landlock: true` in the reward's kwargs: the programs can then write no "
            "files at all, but read all that the worker can, its environment included"
        )
    return None


def confine(limits: SandboxLimits, folder: str | None) -> None:
    """Give up everything but computing, and writing into `folder`.

    Raises:
        OSError: the kernel refused a part of it; nothing untrusted may run then.
    """
    parent = os.getppid()
    cpu = math.ceil(limits.cpu_seconds)
    for kind, most in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_AS, limits.memory_mb * MB),
        (resource.RLIMIT_FSIZE, FILE_MB * MB),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file too large is an OSError of the write
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    drop_capabilities()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the signal was asked for
        os._exit(1)
    if not limits.without_landlock:
        landlock.restrict(folder)
    seccomp.install(read_only=limits.without_landlock)
