"""The log of a process of ours, in a form that the launcher reads back."""

import faulthandler
import logging
import signal
import sys

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
ERROR_START = r"\d{4}-\d\d-\d\d [\d:,]+ ERROR "  # of a line in LOG_FORMAT, as a pattern


def start_log() -> None:
    """Logs to stderr from now on, and every thread's stack on SIGUSR1.

    The launcher collects the stacks in a crash bundle.
    """
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line per request
    faulthandler.register(signal.SIGUSR1, all_threads=True)
