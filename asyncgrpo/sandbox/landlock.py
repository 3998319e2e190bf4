"""The files that a process may touch: Landlock, Linux 5.13 and later, without privileges.

libraries, Python's packages   read, execute
the folder                     read, write; make and remove files, no folders
all else                       refused; newer kernels also refuse TCP and signals to others
"""

import ctypes
import os
import sys
import sysconfig
from functools import cache
from pathlib import Path

from asyncgrpo.sandbox.kernel import syscall

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same on all architectures
VERSION_FLAG = 1
PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_FILE, MAKE_REG = 1 << 5, 1 << 8
TRUNCATE = 1 << 14
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
READ = EXECUTE | READ_FILE | READ_DIR
WRITE = READ | WRITE_FILE | REMOVE_FILE | MAKE_REG | TRUNCATE  # files; no folders in it

# Rights and restrictions that each version of Landlock added.
FS_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
NET_RIGHTS = {1: 0, 4: 0b11}  # bind, connect
SCOPES = {1: 0, 6: 0b11}  # abstract sockets, signals

SYSTEM = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache",
    "/etc/localtime", "/usr/share/zoneinfo", "/dev/urandom", "/dev/random", "/dev/zero",
)  # fmt: skip


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


@cache
def version() -> int:
    """The kernel's version of Landlock; 0 where it has none."""
    try:
        return syscall(CREATE_RULESET, None, 0, VERSION_FLAG)
    except OSError:
        return 0


def restrict(folder: str | None) -> None:
    """Confine this process to libraries, and to `folder` for writing, for good.

    Raises:
        OSError: the kernel refused.
    """
    has = version()
    handled = _up_to(FS_RIGHTS, has)
    wanted = _Ruleset(handled, _up_to(NET_RIGHTS, has), _up_to(SCOPES, has))
    size = 8 if has < 4 else 16 if has < 6 else 24
    ruleset = syscall(CREATE_RULESET, ctypes.byref(wanted), size, 0)
    for path in python_paths():
        _allow(ruleset, path, READ & handled)
    _allow(ruleset, "/dev/null", (READ_FILE | WRITE_FILE) & handled)
    if folder is not None:
        _allow(ruleset, folder, WRITE & handled)
    syscall(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


@cache
def python_paths() -> tuple[str, ...]:
    """The paths a program needs to run: system libraries, Python's own, and packages."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = [
        *SYSTEM,
        *(sysconfig.get_path(name) for name in names),
        sysconfig.get_config_var("LIBDIR"),
    ]
    found += [path for path in sys.path if path.endswith("-packages")]
    return tuple(sorted({path for path in found if path and Path(path).exists()}))


def _allow(ruleset: int, path: str, rights: int) -> None:
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not Path(path).is_dir():
            rights &= FILE_RIGHTS
        rule = _PathBeneath(rights, parent)
        syscall(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(parent)


def _up_to(added: dict[int, int], has: int) -> int:
    return added[max(number for number in added if number <= has)]
