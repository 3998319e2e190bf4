"""A rank that ends while gloo's thread asks for the interpreter.

Run under torchrun by test_ending.py.

FLAGS [plainly]      a file of two bytes; `plainly` = end as Python does, which aborts

rank 1   begins a sum, lets go of it, says BEGUN; holds the interpreter until JOINED; ends
rank 0   joins the sum once it has BEGUN, says JOINED
gloo     in rank 1: drops the sum's tensor, which belongs to Python, and waits for rank 1
"""

import mmap
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from asyncgrpo.process.ending import run_to_the_end

BEGUN, JOINED = range(2)  # bytes of the file
ASKING_S = 0.3  # gloo's thread comes to ask within; where it does not, there is nothing to see


def main() -> None:
    with Path(sys.argv[1]).open("r+b") as file:
        flags = mmap.mmap(file.fileno(), 2)
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        while not flags[BEGUN]:
            time.sleep(0.001)
        dist.all_reduce(torch.ones(1))
        flags[JOINED] = 1
        return
    sys.setswitchinterval(3600)  # whoever holds the interpreter keeps it, as in a busy moment
    dist.all_reduce(torch.ones(1), async_op=True)
    flags[BEGUN] = 1
    while not flags[JOINED]:
        pass
    end = time.monotonic() + ASKING_S
    while time.monotonic() < end:
        pass


def run_plainly(main: Callable[[], None]) -> None:
    main()


if __name__ == "__main__":
    (run_plainly if "plainly" in sys.argv else run_to_the_end)(main)
