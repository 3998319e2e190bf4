"""The end of a process in which calls of the user's may still be under way.

    the work --> threads that are no daemons --> atexit --> streams --> gone

A daemon thread that comes back from native code while the interpreter is taken apart is unwound
through that code: C++ answers with abort, and a worker that did its work with status 134 (a reward
in torch). Libraries that wait for their threads then wait for ever (pyarrow).
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn


def run_to_the_end(main: Callable[[], None]) -> NoReturn:
    """Run `main` and end the process as the interpreter would, without taking it apart."""
    status = 1
    try:
        main()
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException as error:  # noqa: BLE001 - as the interpreter does with what nobody caught
        sys.excepthook(type(error), error, error.__traceback__)
    try:
        # In this order, as Py_FinalizeEx: pools end their processes before those are joined.
        threading._shutdown()  # noqa: SLF001 # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)
