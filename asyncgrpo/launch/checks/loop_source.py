"""A check of `rollout.loop` from its source, before anything starts.

    class Mine(Base)   a base that another module has, or one here that may be a loop
    def filter_prompt  not `async def`, where `AsyncRolloutLoop` has a plain `def`

Running the user's module could take seconds and torch. Other classes (decorated, or with computed
bases) are left to the worker, which checks the class itself with the same messages.
"""

import ast
import builtins

from asyncgrpo.launch.checks.source_files import definition

KEY = "rollout.loop"
BUILT_IN = frozenset(vars(builtins))
OURS = ("asyncgrpo.rollout.loop", "AsyncRolloutLoop")


def problem(path: str) -> str | None:
    """The problem with the class at import path `path`, if its source shows one."""
    module, _, name = path.rpartition(":")
    found = definition(module, name)
    if found is None:
        return None
    if not _may_be_loop(module, found):
        kind = "class without that base" if isinstance(found, ast.ClassDef) else "function"
        return f"{KEY}: `{name}` is a {kind}; expected a subclass of asyncgrpo.AsyncRolloutLoop"
    for method in found.body:
        if not isinstance(method, ast.AsyncFunctionDef) or method.decorator_list:
            continue
        if method.name in _plain_hooks():
            return f"{KEY}: `{name}.{method.name}` is `async def`; expected a plain `def`"
    return None


def _may_be_loop(module: str, found: ast.AST | None, seen: frozenset[str] = frozenset()) -> bool:
    if found is None:  # another module's, or made by something else
        return True
    if not isinstance(found, ast.ClassDef):
        return False
    if found.name in seen:  # no class is its own base: the name is also another's
        return True
    seen |= {found.name}
    return (module, found.name) == OURS or any(
        not isinstance(base, ast.Name)
        or (base.id not in BUILT_IN and _may_be_loop(module, definition(module, base.id), seen))
        for base in found.bases
    )


def _plain_hooks() -> set[str]:
    ours = definition(*OURS)  # importing it takes half a second
    methods = ours.body if ours is not None else []
    return {method.name for method in methods if isinstance(method, ast.FunctionDef)}
