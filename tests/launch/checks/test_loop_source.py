"""A wrong loop is reported before anything starts; its module does not run."""

from pathlib import Path

import pytest

from asyncgrpo.launch.checks.loop_source import problem

SOURCE = """
raise SystemExit("this module ran")
import functools, somewhere
from asyncgrpo import AsyncRolloutLoop
from elsewhere import SameName, Unknown

class Plain(AsyncRolloutLoop):
    def filter_prompt(self, row_index, row, epoch):
        return True

    async def generate_one(self, prompt, tools, group_id=0):
        return await super().generate_one(prompt, tools, group_id)

class Above(Plain): ...
class Mixed(dict, somewhere.Loop): ...
class FromElsewhere(Unknown): ...
class SameName(SameName): ...

@functools.total_ordering
class Decorated: ...

class Nothing: ...
class BelowNothing(Nothing, object): ...

def make(config): ...

class AsyncFilter(AsyncRolloutLoop):
    async def filter_prompt(self, row_index, row, epoch):
        return True

class DecoratedHook(Plain):
    @functools.partial
    async def filter_prompt(self, row_index, row, epoch):
        return True

class AsyncAdvantages(Plain):
    async def compute_advantages(self, group): ...
"""


@pytest.fixture(params=["my_loops", "./my_loops.py"])
def module(request, tmp_path: Path, monkeypatch) -> str:
    (tmp_path / "my_loops.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return request.param


@pytest.mark.parametrize(
    "name", ["Plain", "Above", "Mixed", "FromElsewhere", "SameName", "Decorated", "DecoratedHook"]
)
def test_what_may_be_a_loop_is_left_to_the_worker(module: str, name: str):
    assert problem(f"{module}:{name}") is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Nothing", "class without that base"),
        ("BelowNothing", "class without that base"),
        ("make", "function"),
    ],
)
def test_what_is_no_subclass_is_told(module: str, name: str, kind: str):
    assert problem(f"{module}:{name}") == (
        f"rollout.loop: `{name}` is a {kind}; expected a subclass of asyncgrpo.AsyncRolloutLoop"
    )


@pytest.mark.parametrize(
    ("name", "hook"),
    [("AsyncFilter", "filter_prompt"), ("AsyncAdvantages", "compute_advantages")],
)
def test_a_hook_whose_result_is_used_as_it_comes_is_not_async(module: str, name: str, hook: str):
    expected = f"rollout.loop: `{name}.{hook}` is `async def`; expected a plain `def`"
    assert problem(f"{module}:{name}") == expected


def test_the_loop_itself_is_one():
    assert problem("asyncgrpo.rollout.loop:AsyncRolloutLoop") is None
