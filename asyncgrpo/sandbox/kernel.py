"""System calls that Python has no function for.

prctl, capset, landlock_*: by number, through ctypes; an error is an OSError.
"""

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x20080522
SYS_CAPSET = {"x86_64": 126, "aarch64": 91}


def syscall(number: int, *arguments: object) -> int:
    """A system call; whole numbers are passed as 64 bits.

    Raises:
        OSError: it failed.
    """
    wide = (ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)
    return _checked(_libc.syscall(ctypes.c_long(number), *wide))


def prctl(option: int, *arguments: object) -> int:
    """Set a property of this process. Raises OSError."""
    wide = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    zeros = [ctypes.c_ulong(0)] * (4 - len(wide))
    return _checked(_libc.prctl(ctypes.c_int(option), *wide, *zeros))


def drop_capabilities() -> None:
    """Be as powerless as any user, also as root. Raises OSError."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    syscall(SYS_CAPSET[os.uname().machine], header, nothing)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
