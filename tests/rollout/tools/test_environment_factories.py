"""Environments that are made with arguments, or by a function."""

import threading

import pytest

from asyncgrpo.errors import HookError
from asyncgrpo.metrics.values import Recorder
from tests.rollout import environment_classes as classes
from tests.rollout.tools.test_environments import load, rent, source


@pytest.fixture(autouse=True)
def _forget():
    classes.MADE.clear()
    classes.CALLED_FROM.clear()
    classes.may_go_on.clear()


@pytest.mark.parametrize(
    ("name", "kwargs", "level"),
    [
        ("Graded", {"level": 3}, 3),
        ("make_graded", {"level": 3}, 30),
        ("make_graded_later", {"level": 3}, 3),
        ("graded_of_five", {}, 5),
    ],
)
async def test_a_class_or_a_function_gets_the_keywords_of_the_recipe(name, kwargs, level):
    environments = load(source(name, **kwargs))
    (kind,) = environments.kinds
    assert (kind.name, kind.tool_names) == ("Graded", ("look",))
    async with rent(environments, {}) as one, rent(environments, {}) as other:
        assert one.instance.level == other.instance.level == level
        assert await environments.reward(one, recorder=Recorder()) == level
    assert len(classes.MADE) == 2  # the instance that told the class is used too
    assert threading.current_thread().name not in classes.CALLED_FROM


@pytest.mark.parametrize("name", ["Graded", "make_graded"])
async def test_instances_share_no_argument(name):
    environments = load(source(name, level=1, sizes=[]))
    async with rent(environments, {}) as one, rent(environments, {}) as other:
        assert one.instance.sizes == other.instance.sizes == [1]


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("Graded", {}, "its constructor is called without arguments: missing .* 'level'"),
        ("Graded", {"size": 1}, "its constructor is called with `size` alone: missing"),
        ("Graded", {"level": 1, "size": 1}, "with `level`, `size` alone: got an unexpected"),
        ("make_graded", {}, "`make_graded` is called without arguments: missing .* 'level'"),
        ("makes_a_class", {}, "`makes_a_class` made the class `Graded`; expected an instance"),
        ("makes_nothing", {}, r"`NoneType` has no `reset\(\*\*row\)`"),
        ("makes_and_raises", {}, r"`makes_and_raises` raised OSError: no sandbox \(.*:\d+ in .*\)"),
        ("makes_and_hangs", {}, "`makes_and_hangs` took longer than .*_timeout_s = 0.1"),
        ("KINDS", {}, "expected a class with a `reset` method, or a function"),
    ],
)
def test_what_makes_no_environment_is_named_before_the_start(name, kwargs, message):
    try:
        with pytest.raises(HookError, match=f"rollout.environments: .*{message}"):
            load(source(name, **kwargs), timeout_s=0.1)
    finally:
        classes.may_go_on.set()


async def test_a_function_that_makes_another_kind_later_costs_the_rollout():
    environments = load(source("makes_something_else_each_time"))
    async with rent(environments, {}):
        with pytest.raises(HookError, match=r"environment `Graded`: .* made .*Plain.*expected a"):
            async with rent(environments, {}):
                pass
