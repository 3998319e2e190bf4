"""The checks that need a GPU, in one go: a line each, exit code 1 where one fails.

    python -m tests.gpu           on a machine with a GPU; a few minutes, no vLLM
    python -m tests.gpu --cpu     the same code, small, with a stand-in for the kernels

On a CPU it shows that the script works, not that the kernels do: their place is taken by a plain
function, and nothing is judged by time.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator

import torch
from transformers import Qwen3Config

from asyncgrpo.training.attention.attention_backends import SDPA, Backends, choose_backends
from tests.gpu import agreement, head, speed
from tests.gpu.line import Line
from tests.gpu.made_rows import Group, forked_row
from tests.training.fake_varlen import FAKE_VARLEN

MEDIUM = Qwen3Config(
    vocab_size=32_768,
    hidden_size=2048,
    intermediate_size=6144,
    num_hidden_layers=12,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
)
TINY = Qwen3Config(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)


def on_gpu() -> Iterator[Line]:
    """Kernels against the oracle, and the speed they are for."""
    device = torch.device("cuda")
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}")
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    yield from agreement.check(forked_row(128), agreement.backends_on_gpus(), dtypes, device)
    yield from head.check(head.Size(32_768, 1024, 2048), dtypes, device)
    group = Group(num_samples=8, prompt=2137, completion=512)
    auto = choose_backends("auto", device)
    yield from speed.check(MEDIUM, group, auto, torch.bfloat16, device, judged=True)


def on_cpu() -> Iterator[Line]:
    """The same, small enough for a test."""
    device = torch.device("cpu")
    dtypes = (torch.bfloat16, torch.float32)
    yield from agreement.check(forked_row(6), [SDPA, FAKE_VARLEN], dtypes, device)
    yield from head.check(head.Size(199, 64, 48), dtypes, device)
    group = Group(num_samples=8, prompt=209, completion=50)
    fake = Backends(FAKE_VARLEN)
    yield from speed.check(TINY, group, fake, torch.float32, device, judged=False)


def report(lines: Iterator[Line]) -> int:
    """Print each line as it comes; the exit code."""
    shown, counted = itertools.tee(lines)
    for line in shown:
        print(line, flush=True)
    failed = sum(line.failed for line in counted)
    print(f"{failed} of the checks failed" if failed else "all checks passed")
    return 1 if failed else 0


def main(arguments: list[str]) -> int:
    """Run the checks; returns the exit code, 2 where there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="small, with a stand-in for the kernels")
    if parser.parse_args(arguments).cpu:
        return report(on_cpu())
    if not torch.cuda.is_available():
        sys.stderr.write("no GPU here; `python -m tests.gpu --cpu` runs the stand-in\n")
        return 2
    return report(on_gpu())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
