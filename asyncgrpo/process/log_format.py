"""The log of a process of ours, in a form that the launcher reads back."""

import logging
import os
import sys

from asyncgrpo.process.stacks import write_stacks_on_request

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
ERROR_START = r"\d{4}-\d\d-\d\d [\d:,]+ ERROR "  # of a line in LOG_FORMAT, as a pattern

# Logged by a rank whose peer ended first; the peer's own words say why.
LOST_RANK = "a rank of the trainer is gone"

DEBUG_VARIABLE = "ASYNCGRPO_DEBUG"  # set by `--debug`; every process of the run inherits it


def is_debug() -> bool:
    """True under `--debug`: errors are logged with their tracebacks."""
    return bool(os.environ.get(DEBUG_VARIABLE))


def start_log() -> None:
    """Logs to stderr from now on, more under `--debug`, and stacks on request."""
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stderr)
    if is_debug():
        logging.getLogger("asyncgrpo").setLevel(logging.DEBUG)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line per request
    write_stacks_on_request()
