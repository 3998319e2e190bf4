"""The stacks of a process on SIGUSR1, as it runs or hangs.

The launcher collects them in a crash bundle.

    SIGUSR1 --main thread, at once--> its own stack
            --main thread, between two instructions of Python--> every thread's

The first comes even from a main thread that hangs in native code. Only the second may look at other
threads: it holds the interpreter, so they stand still. To read the stack of one that moves can end
the process with SIGSEGV (seen).
"""

import faulthandler
import signal
from types import FrameType


def write_stacks_on_request() -> None:
    """Stacks go to stderr whenever SIGUSR1 comes."""
    signal.signal(signal.SIGUSR1, _write_all)
    faulthandler.register(signal.SIGUSR1, all_threads=False, chain=True)


def _write_all(_signal: int, _frame: FrameType | None) -> None:
    faulthandler.dump_traceback(all_threads=True)
