"""A check of `loss.correction` and `rollout.advantage` from their source, before anything starts.

    def weight(ratios, limits)            plain, and called with two arguments by position
    def advantage(rewards_G, batch_B)

Running the user's module could take seconds and torch. What is made otherwise (a class, a
decorated function, one that another module has) is left to the process that imports it.
"""

import ast
from collections.abc import Iterator

from asyncgrpo.config import Config
from asyncgrpo.config.problems import dotted
from asyncgrpo.config.reading.built_in import PLACES, is_own
from asyncgrpo.config.sections.tree import leaf
from asyncgrpo.launch.checks.source_files import definition

CALLS = {
    "loss.correction": "weight(ratios, limits)",
    "rollout.advantage": "advantage(rewards_G, batch_B)",
}
NUM_ARGUMENTS = 2  # of both


def own_paths(config: Config) -> dict[str, str]:
    """The import paths that stand where a word of ours could: key -> import path."""
    values = {dotted(key): str(leaf(config, key)) for key in PLACES}
    return {key: value for key, value in values.items() if is_own(value)}


def problems(config: Config) -> Iterator[str]:
    """A line for each function that could not be called."""
    for key, path in own_paths(config).items():
        module, _, name = path.rpartition(":")
        found = definition(module, name)
        expected = f"expected `def {CALLS[key]}`"
        if isinstance(found, ast.AsyncFunctionDef):
            yield f"{key}: `{name}` of {module} is `async def`; {expected}"
        elif isinstance(found, ast.FunctionDef) and not _takes(found.args, NUM_ARGUMENTS):
            yield f"{key}: `{name}` of {module} takes ({ast.unparse(found.args)}); {expected}"


def _takes(arguments: ast.arguments, count: int) -> bool:
    """True if a call with `count` arguments by position fits."""
    most = len(arguments.posonlyargs) + len(arguments.args)
    least = most - len(arguments.defaults)
    needs_keyword = any(default is None for default in arguments.kw_defaults)
    return least <= count and (count <= most or arguments.vararg is not None) and not needs_keyword
