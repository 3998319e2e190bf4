"""Stacks on request: from a process that works, and from one that hangs."""

import signal
import subprocess
import sys

BUSY = """
import os, signal, threading
from asyncgrpo.process.stacks import write_stacks_on_request
write_stacks_on_request()

def moving(depth):
    return depth and moving(depth - 1)

def move_for_ever():
    while True:
        moving(40)

for _ in range(8):
    threading.Thread(target=move_for_ever, daemon=True).start()
for _ in range(200):
    os.kill(os.getpid(), signal.SIGUSR1)
print("alive", flush=True)
os._exit(0)
"""

HUNG = """
import ctypes, signal
from asyncgrpo.process.stacks import write_stacks_on_request
write_stacks_on_request()

def stuck_in_native_code():
    libc = ctypes.PyDLL(None)  # which keeps the interpreter to itself
    print("stuck", flush=True)
    while True:
        libc.sleep(60)

stuck_in_native_code()
"""


def test_threads_that_move_are_shown_and_the_process_lives():
    done = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, check=True)
    assert done.stdout == "alive\n"
    assert "in move_for_ever" in done.stderr


def test_a_main_thread_that_keeps_the_interpreter_shows_where_it_hangs():
    with subprocess.Popen(
        [sys.executable, "-c", HUNG], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "stuck\n"
        process.send_signal(signal.SIGUSR1)
        shown = next(line for line in process.stderr if "stuck_in_native_code" in line)
        process.kill()
    assert shown
