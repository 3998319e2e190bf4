"""Tools that cannot be described are reported before anything starts; none runs."""

from pathlib import Path

import pytest

from asyncgrpo.config.sections.environments import EnvironmentSource
from asyncgrpo.launch.checks.tool_source import problems

SOURCE = '''
raise SystemExit("this module ran")

def add(a: int, b: int = 2, *, c: int = 3) -> int:
    """Add.

    Args:
        a: One.
        b: Another.
        c: A third.
    """

def add_again(a: int) -> int:
    """Add.

    Args:
        a (int): Described, with a type.
    """

def no_description(a: int, b: int):
    """Add.

    Args:
        a: One.
    """

def yields(a: int):
    """Count.

    Args:
        a: How far.
    """
    for i in range(a):
        yield i

def has_one_that_yields(a: int):
    """Count.

    Args:
        a: How far.
    """
    def count():
        yield a
    return list(count())

async def no_hint(a, b: int):
    """Add."""

def no_keyword_hint(a: int, *, b):
    """Add."""

def no_docstring(a: int):
    return a

def takes_anything(*numbers: int, **more: int):
    """Add."""

@decorated
def unknowable(a):
    return a

def make(level, size=2, *, seed=None):
    return Game()

async def make_any(**options):
    return Game()

class Made:
    def __init__(self, level):
        self.level = level

    def reset(self, **columns):
        return None

class Game:
    """A game."""

    def reset(self, **columns):
        return None

    def get_reward(self):
        return 1.0

    def move(self, to: str) -> None:
        """Move.

        Args:
            to: Where.
        """

    def _hidden(self, anything):
        return anything

    @property
    def unknowable(self):
        return 3

class BadGame:
    def reset(self):
        return None

    def move(self, to) -> None:
        """Move."""

    def stop(self) -> None:
        return None

class NoReset:
    pass

class Inherits(Game):
    def stay(self) -> None:
        """Stay."""
'''


@pytest.fixture
def module(tmp_path: Path) -> str:
    (tmp_path / "bomb.py").write_text(SOURCE)
    return str(tmp_path / "bomb.py")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no_hint", "tool `no_hint`: parameter `a` has no type hint"),
        ("no_keyword_hint", "tool `no_keyword_hint`: parameter `b` has no type hint"),
        ("no_docstring", "tool `no_docstring` has no docstring"),
        ("takes_anything", "tool `takes_anything`: parameter `*numbers` cannot be passed"),
        ("no_description", "tool `no_description`: `Args:` of its docstring does not describe `b`"),
        ("yields", "tool `yields` yields; return the result"),
        ("add", "another tool is named `add` already; rename one of them"),
        ("Game", "`Game` is a class; expected a function"),
    ],
)
def test_a_tool_is_named_with_what_it_lacks(module: str, name: str, problem: str):
    (line,) = problems([f"{module}:add", f"{module}:{name}"], {})
    assert line.startswith(f"rollout.tools[1]: {problem}")


GOOD_OR_UNKNOWABLE = ["add", "add_again", "has_one_that_yields", "unknowable", "missing"]


def test_a_method_that_has_the_name_of_a_tool_is_told(module: str, tmp_path: Path):
    (tmp_path / "other.py").write_text('def move() -> None:\n    """Move."""\n')
    tools, environments = [f"{tmp_path}/other.py:move"], environments_of("", module, "Game")
    (line,) = problems(tools, environments)
    assert line == (
        "rollout.environments: `Game.move` has the name of a tool in rollout.tools[0]; "
        "rename one of them"
    )


def environments_of(name: str, module: str, cls: str, kwargs=None):
    return {
        f"rollout.environments{name}": EnvironmentSource(
            path=f"{module}:{cls}", kwargs=kwargs or {}
        )
    }


@pytest.mark.parametrize("name", GOOD_OR_UNKNOWABLE)
def test_what_is_good_or_unknowable_is_left_to_the_worker(module: str, name: str):
    assert list(problems([f"{module}:{name}"], {})) == []


def test_an_environments_methods_are_its_tools(module: str):
    environments = {
        **environments_of(".good", module, "Game"),
        **environments_of(".heir", module, "Inherits"),
        **environments_of(".bad", module, "BadGame"),
        **environments_of(".none", module, "NoReset"),
    }
    assert [line.partition(";")[0] for line in problems([], environments)] == [
        "rollout.environments.bad: tool `move`: parameter `to` has no type hint",
        "rollout.environments.bad: tool `stop` has no docstring",
        "rollout.environments.none: `NoReset` has no `reset(**row)`, which begins a rollout",
    ]


@pytest.mark.parametrize(
    ("name", "kwargs", "problem"),
    [
        ("make", {"level": 3}, ""),
        ("make", {"level": 3, "size": 1, "seed": 0}, ""),
        ("make", {}, "needs `level`: give it in kwargs"),
        ("make", {"level": 3, "colour": 1}, "does not take `colour` of kwargs; expected level, "),
        ("make_any", {"colour": 1}, ""),
        ("Made", {"level": 3}, ""),
        ("Made", {}, "needs `level`: give it in kwargs"),
        ("Game", {}, ""),
        ("Inherits", {"level": 3}, ""),
    ],
)
def test_what_makes_an_environment_gets_its_keywords(module: str, name, kwargs, problem: str):
    found = list(problems([], environments_of("", module, name, kwargs)))
    assert [line.startswith(f"rollout.environments: `{name}` {problem}") for line in found] == (
        [True] if problem else []
    )
