"""Names of processes, as `ps` shows them."""

import subprocess
import sys

from asyncgrpo.process.title import process_title


def test_a_process_shows_its_title():
    title = process_title("worker-1", "demo")
    assert title == "asyncgrpo: worker-1 demo"
    code = (
        "import psutil, sys; from asyncgrpo.process.title import take_title\n"
        "take_title(sys.argv[1]); print(psutil.Process().cmdline()[0])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, title], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == title
