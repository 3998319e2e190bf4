"""The end of a process: the steps that still run, and those that must not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def ended(body: str) -> tuple[int, str, str]:
    """Exit code, standard output and errors of a program whose `main` is `body`."""
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    code = (
        "import atexit, concurrent.futures, sys, threading, time\n"
        "from asyncgrpo.process.ending import run_to_the_end\n"
        f"def main():\n{indented}"
        "run_to_the_end(main)\n"
    )
    program = [sys.executable, "-c", code]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ("pass", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('a message')", 1, "a message"),
        ("return 4", 4, ""),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
    ],
)
def test_the_status_is_the_interpreters(body, status, says):
    code, _, errors = ended(body)
    assert (code, says in errors, bool(errors)) == (status, True, bool(says))


def test_what_waits_for_the_end_is_done():
    """Output that is not written yet, exit handlers, threads that are no daemons, pools."""
    code, out, errors = ended(
        "print('printed')\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
        "concurrent.futures.ProcessPoolExecutor(1).submit(abs, 1).result()"
    )
    assert (code, errors) == (0, "")
    assert out.split("\n") == ["printed", "thread", "at exit", ""]


def test_a_thread_of_gloos_that_still_asks_for_the_interpreter_aborts_no_rank(tmp_path: Path):
    """Such an end aborts where the interpreter is taken apart: `last_collective FLAGS plainly`."""
    flags = tmp_path / "flags"
    flags.write_bytes(bytes(2))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "tests.process.last_collective", str(flags)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
