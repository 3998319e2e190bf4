"""Settings of all tests.

pytest                                  the same examples each time
pytest --hypothesis-profile=search      new ones, and many
"""

import gc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# What is imported stays, and to look for garbage in it while it grows takes seconds.
gc.disable()

# A clock fails on a busy machine, and an example that nobody has met fails whoever comes next.
settings.register_profile(
    "asyncgrpo",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "search", settings.get_profile("asyncgrpo"), derandomize=False, max_examples=2000
)
settings.load_profile("asyncgrpo")

# With `-n 2` each process takes the next file when it is done: those that start servers and ranks
# come first, the longest at the head, so that both end together.
LONGEST = (
    "end_to_end/test_faults.py",
    "end_to_end/test_train.py",
    "end_to_end/test_tools.py",
    "training/test_trainer.py",
    "sync/test_vllm_folder.py",
    "server/test_contract.py",
    "training/test_vllm_ratios.py",
    "training/test_vllm_hybrid.py",
    "sync/test_vllm_adapter.py",
    "rollout/test_worker.py",
    "bench/test_memory.py",
    "launch/test_attempt.py",
    "training/intake/test_connected_workers.py",
    "training/test_packed_row.py",
    "rollout/test_worker_loops.py",
    "rollout/test_worker_loops_tools.py",
)


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {Path(__file__).parent / name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
