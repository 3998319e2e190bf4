"""Garbage collection around the imports of a process."""

import subprocess
import sys

CODE = """
import gc
from asyncgrpo.process.loading import collect_from_now, load_without_collecting
load_without_collecting()
assert not gc.isenabled()
import asyncgrpo.records
collect_from_now()
assert gc.isenabled()
print(gc.get_freeze_count())
"""


def test_nothing_is_collected_while_imports_run_and_they_are_left_out_afterwards():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000
