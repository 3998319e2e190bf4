"""The end of a process in which user code may still run.

    the work --> threads that are no daemons --> atexit --> streams --> gone

While the interpreter finalizes, a daemon thread that returns from native code is unwound through
that code. In C++ that aborts: a worker that did its work would end with status 134 (seen with a
reward in torch). Libraries that wait for their own threads can then wait for ever (pyarrow).
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn


def run_to_the_end(main: Callable[[], None]) -> NoReturn:
    """Runs `main` and ends the process as the interpreter would, but without finalizing it."""
    status = 1
    try:
        main()
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
    try:
        # In this order, as Py_FinalizeEx: pools end their processes before those are joined.
        threading._shutdown()  # noqa: SLF001 # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)
