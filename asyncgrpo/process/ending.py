"""The end of a process in which native threads or user code may still run.

    the work --> threads that are no daemons --> atexit --> streams --> gone

While the interpreter finalizes, a thread that asks for it is unwound through the native code it
comes from. In C++ that aborts: a process that did its work would end with status 134. Seen with

- a reward in torch, in a daemon thread of the worker;
- a rank of gloo, whose thread frees the last collective's tensors after it has reported its end:
  tensors belong to Python.

Libraries that wait for their own threads can then wait for ever (pyarrow).
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn


def run_to_the_end(main: Callable[[], object]) -> NoReturn:
    """Runs `main` and ends the process as the interpreter would, but without finalizing it.

    As in `sys.exit(main())`, `main` may give the exit status.
    """
    status = 1
    try:
        status = _status(main())
    except SystemExit as end:
        status = _status(end.code)
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


def _status(code: object) -> int:
    """The exit status for `code`; anything but a number is a message, as in `sys.exit`."""
    if code is None or isinstance(code, int):
        return int(code or 0)
    print(code, file=sys.stderr)
    return 1
