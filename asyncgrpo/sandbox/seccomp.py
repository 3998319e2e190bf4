"""The system calls that a process may make: a seccomp filter, without privileges.

    another architecture                         the process is killed
    a number that this file does not know        ENOSYS
    REFUSED                                      EPERM
    kill, tgkill, prlimit of others; clone of a process; clearing the parent-death signal: EPERM
    clone3                                       ENOSYS, so that libc makes its threads with clone
    all else                                     allowed

The lists hold the refused calls, not the allowed ones, because the calls that Python and its
packages make change with each libc. Calls that need a capability fail, since the process has none.
"""

import ctypes
import errno
import os
import struct

from asyncgrpo.sandbox.kernel import PR_SET_PDEATHSIG, PR_SET_SECCOMP, prctl
from asyncgrpo.sandbox.kernel import SECCOMP_MODE_FILTER as FILTER

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NEWEST = 462  # later calls are unknown here; also beyond all x32 calls' bit
CLONE3 = 435
CLONE_THREAD = 0x10000

# name: (x86_64, aarch64); None where it does not exist
_TABLE: dict[str, tuple[int | None, int | None]] = {
    # the network, and calls that could make a socket past this filter
    "socket": (41, 198), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # other processes
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272),
    "setpgid": (109, 154), "setsid": (112, 157), "setpriority": (141, 140),
    "ioprio_set": (251, 30), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "sched_setaffinity": (203, 122),
    # the kernel's wider surface
    "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "personality": (135, 92),
    # memory that outlives the process or escapes its limits
    "shmget": (29, 194), "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190),
    "mq_open": (240, 180), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    # beyond Landlock: owners, modes, times, attributes
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88), "truncate": (76, 45),
    "flock": (73, 32),
}  # fmt: skip

# Without Landlock nothing can be written at all: paths are beyond a filter, flags are not.
_WRITING: dict[str, tuple[int | None, int | None]] = {
    "creat": (85, None), "openat2": (437, 437), "mkdir": (83, None), "mkdirat": (258, 34),
    "rmdir": (84, None), "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None),
    "renameat": (264, 38), "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37),
    "symlink": (88, None), "symlinkat": (266, 36), "mknod": (133, None), "mknodat": (259, 33),
}  # fmt: skip
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_CALLS = {"clone": (56, 220), "kill": (62, 129), "tgkill": (234, 131), "prlimit64": (302, 261),
          "prctl": (157, 167), "openat": (257, 56), "open": (2, None)}  # fmt: skip

# Instructions of the filter's machine: (code, jump if true, jump if false, constant).
Instruction = tuple[int, int, int, int]
LOAD, EQUAL, ABOVE, ANY_BIT, RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000


def install(*, read_only: bool) -> None:
    """Filter this process's calls for good; `read_only` refuses all writing of files too.

    Needs no_new_privs. Raises OSError.
    """
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in instructions(os.uname().machine, os.getpid(), read_only=read_only)
    )
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    prctl(PR_SET_SECCOMP, FILTER, ctypes.c_char_p(header))


def instructions(machine: str, pid: int, *, read_only: bool) -> list[Instruction]:
    """The filter of a process."""
    column = list(ARCHITECTURES).index(machine)
    refused = _TABLE | (_WRITING if read_only else {})
    calls = {name: numbers[column] for name, numbers in _CALLS.items()}
    program = [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER_AT),
        (ABOVE, 0, 1, NEWEST),
        (RETURN, 0, 0, ERROR | errno.ENOSYS),
        *_if_number(CLONE3, [(RETURN, 0, 0, ERROR | errno.ENOSYS)]),
    ]
    for numbers in refused.values():
        program += _if_number(numbers[column], [(RETURN, 0, 0, ERROR | errno.EPERM)])
    program += _if_number(calls["clone"], _only_if(0, ANY_BIT, CLONE_THREAD))
    for name in ("kill", "tgkill"):
        program += _if_number(calls[name], _only_if(0, EQUAL, pid))
    program += _if_number(calls["prlimit64"], _only_if(0, EQUAL, 0, pid))
    program += _if_number(calls["prctl"], _refused_if(0, EQUAL, PR_SET_PDEATHSIG))
    if read_only:
        program += _if_number(calls["openat"], _refused_if(2, ANY_BIT, WRITE_FLAGS))
        program += _if_number(calls["open"], _refused_if(1, ANY_BIT, WRITE_FLAGS))
    return [*program, (RETURN, 0, 0, ALLOW)]


def _if_number(number: int | None, then: list[Instruction]) -> list[Instruction]:
    """`then`, which must return, for one call; the call's number is loaded."""
    return [] if number is None else [(EQUAL, 0, len(then), number), *then]


def _only_if(argument: int, test: int, *allowed: int) -> list[Instruction]:
    """Allowed if the argument's lower half passes one of the tests, else EPERM."""
    checks: list[Instruction] = []
    for left, value in zip(reversed(range(len(allowed))), allowed, strict=True):
        checks.append((test, left + 1, 0, value))
    return [
        (LOAD, 0, 0, ARGUMENTS_AT + 8 * argument),
        *checks,
        (RETURN, 0, 0, ERROR | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]


def _refused_if(argument: int, test: int, value: int) -> list[Instruction]:
    return [
        (LOAD, 0, 0, ARGUMENTS_AT + 8 * argument),
        (test, 0, 1, value),
        (RETURN, 0, 0, ERROR | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
