"""A line of the log, as written and as read back by the launcher."""

import subprocess
import sys

from asyncgrpo.launch.processes import logs

CODE = """
import logging, os, signal
from asyncgrpo.process.log_format import start_log
start_log()
logging.getLogger("httpx").info("a request")
logging.getLogger("asyncgrpo.rollout.worker").error("row 3: `prompt` is missing")
os.kill(os.getpid(), signal.SIGUSR1)
"""


def test_the_launcher_finds_the_message_of_an_error_in_what_a_process_logs():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    first, *stacks = done.stderr.splitlines()
    assert logs.failure([first]) == ["row 3: `prompt` is missing"]
    assert "most recent call first" in stacks[0]
