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

# With `-n 2` each process takes the next file when it is done. The longest come first, so that both
# end together; between those that keep two cores busy stand those that mostly wait.
FIRST = (
    "end_to_end/test_faults.py",
    "training/test_trainer.py",
    "launch/test_attempt.py",
    "rollout/test_worker.py",
    "end_to_end/test_train.py",
    "rollout/test_worker_loops.py",
    "rollout/test_worker_loops_failures.py",
    "rollout/test_worker_loops_tools.py",
    "rollout/test_worker_loops_environments.py",
    "rollout/test_worker_loops_faults.py",
    "rollout/test_worker_loops_limits.py",
    "training/intake/test_connected_workers.py",
    "end_to_end/test_tools.py",
    "rewards/test_code.py",
    "server/test_client.py",
    "launch/processes/test_supervisor.py",
    "training/intake/test_inbox.py",
    "server/test_capabilities.py",
    "sandbox/test_confine.py",
    "rollout/tools/test_tools.py",
    "sync/test_vllm_folder.py",
    "server/test_contract.py",
    "training/test_vllm_ratios.py",
    "bench/test_memory.py",
    "test_same_curve.py",
    "sync/test_vllm_adapter.py",
    "training/test_vllm_hybrid.py",
    "training/test_parallel.py",
    "training/test_packed_row.py",
    "training/test_demo_ranks.py",
)


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {Path(__file__).parent / name: at for at, name in enumerate(FIRST)}
    assert not [path for path in rank if not path.exists()], "FIRST names files that are not there"
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
