"""The judge: runs the tests, whose calls of the program go to the candidate's process.

    test  `assert add(1, 2) == 3`   --add is a Far object-->  [call, add, 1, 2]  -->  candidate
                 ^ compared here        data 3  <----------------------------------------'

The program never sees a test, its expected value, or this process's memory. The answers are data
of builtin types. An object of the program's own class stays there: comparing it with plain data
is False, since its class would decide the comparison.
"""

import builtins
import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

from asyncgrpo.sandbox import frames, values
from asyncgrpo.sandbox.candidate import MODULE
from asyncgrpo.sandbox.frames import ClosedError
from asyncgrpo.sandbox.protocol import PASSED, UNSUPPORTED
from asyncgrpo.sandbox.values import Wire


class _UnsupportedError(Exception):
    """The test needs an object of its own inside the program."""


def run(
    tests: Sequence[str],
    entry_point: str | None,
    requests: IO[bytes],
    answers: IO[bytes],
    verdicts: IO[bytes],
) -> None:
    """Run every test against the candidate; send each verdict as it is known."""
    link = _Link(requests, answers)
    try:
        namespace = link.names()
    except ClosedError as error:
        for _ in tests:
            frames.send(verdicts, str(error))
        return
    _offer_as_module(namespace)
    for test in tests:
        frames.send(verdicts, _verdict(test, namespace, entry_point))


def _verdict(test: str, namespace: dict[str, Any], entry_point: str | None) -> str:
    try:
        exec(compile(test, "test.py", "exec"), namespace)  # noqa: S102 - confined
        check = namespace.get("check")
        if entry_point is not None and not isinstance(check, (Far, type(None))):
            check(namespace[entry_point])
    except _UnsupportedError as error:
        return f"{UNSUPPORTED}{error}"
    except BaseException as error:  # noqa: BLE001 - a test may raise anything; it has failed
        return f"{type(error).__name__}: {error}"[:500]
    return PASSED


def _offer_as_module(namespace: dict[str, Any]) -> None:
    """`from solution import f` works in a test."""
    module = type(sys)(MODULE)
    vars(module).update(namespace)
    sys.modules[MODULE] = module


class _Link:
    """Requests to the candidate, and its names as Far objects."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._requests, self._answers = requests, answers
        self._functions: list[Any] = []  # of the tests', that the program may call

    def names(self) -> dict[str, Any]:
        """The names that the program defined, without those of builtins; modules are our own."""
        message = frames.receive(self._answers)
        if not isinstance(message, dict) or not isinstance(message.get("names"), dict):
            failed = message.get("failed") if isinstance(message, dict) else None
            raise ClosedError(f"the program failed: {failed}")
        namespace: dict[str, Any] = {"__name__": "tests"}
        for name, wire in message["names"].items():
            # A program that redefines a builtin would decide the tests that use it.
            if not (name.startswith("__") or hasattr(builtins, name)):
                self._bind(namespace, name, wire)
        return namespace

    def _bind(self, namespace: dict[str, Any], name: str, wire: Wire) -> None:
        """A module is imported here: the program's could be anything."""
        path = name if name in sys.stdlib_module_names else None
        if isinstance(wire, list) and wire[:1] == ["module"]:
            path = str(wire[1])
        if path is None:
            namespace[name] = self._decode(wire)
            return
        with contextlib.suppress(Exception):  # a test that needs it fails and says so
            namespace[name] = importlib.import_module(path)

    def ask(self, operation: str, target: "Far", *args: Any, **kwargs: Any) -> Any:
        """The result of an operation on one of the candidate's objects.

        Raises:
            Exception: what the program raised, as the builtin exception that it is one of.
        """
        sent = [self._encode(arg) for arg in args]
        named = {name: self._encode(value) for name, value in kwargs.items()}
        frames.send(self._requests, [operation, self._encode(target), sent, named])
        while True:
            answer = frames.receive(self._answers)
            if not isinstance(answer, dict):
                raise ClosedError("the program's process sends no answers")
            if "callback" not in answer:
                break
            frames.send(self._requests, self._called_back(answer))
        if "raised" in answer:
            raise values.builtin_exception(answer["raised"], answer.get("text", ""))
        if "arguments" in answer:
            self._change(args, answer["arguments"])
        return self._decode(answer["returned"])

    def _called_back(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            function = self._functions[request["callback"]]
            args = [self._decode(arg) for arg in request["args"]]
            kwargs = {name: self._decode(value) for name, value in request["kwargs"].items()}
            return {"returned": self._encode(function(*args, **kwargs))}
        except (_UnsupportedError, ClosedError):
            raise
        except Exception as error:  # noqa: BLE001 - the program may expect it
            return {"raised": [k.__name__ for k in type(error).__mro__], "text": str(error)}

    def _change(self, args: Sequence[Any], now: Sequence[Wire]) -> None:
        """Repeat on the test's own objects the changes that the program made in place."""
        for argument, wire in zip(args, now, strict=True):
            if isinstance(argument, (list, bytearray, dict, set)):
                _replace(argument, self._decode(wire))

    def _encode(self, value: object) -> Wire:
        return values.encode(value, self._refer)

    def _refer(self, value: object) -> Wire:
        if isinstance(value, Far):
            return ["near", object.__getattribute__(value, "_handle")]
        if not callable(value) or isinstance(value, type):
            raise _UnsupportedError(f"it passes a {type(value).__name__} of its own to the program")
        self._functions.append(value)
        return ["far", len(self._functions) - 1]

    def _decode(self, wire: Wire) -> Any:
        return values.decode(wire, self._resolve)

    def _resolve(self, kind: str, handle: Any) -> object:
        return Far(self, handle) if kind == "far" else self._functions[handle]


def _replace(container: Any, items: Any) -> None:
    container.clear()
    (container.extend if isinstance(container, (list, bytearray)) else container.update)(items)


class Far(values.Reference):
    """An object of the program's; each operation on it is done in the candidate."""

    def __init__(self, link: _Link, handle: int) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_handle", handle)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _ask("call", self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return _ask("getattr", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        _ask("setattr", self, name, value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Far):
            return False
        return _ask("eq", self, other) is True

    def __hash__(self) -> int:
        return hash(object.__getattribute__(self, "_handle"))

    def __bool__(self) -> bool:
        return _ask("bool", self) is True

    def __len__(self) -> int:
        return _ask("len", self)

    def __iter__(self) -> Iterator[Any]:
        items = _ask("iter", self)
        while True:
            try:
                yield _ask("next", items)
            except StopIteration:
                return

    def __next__(self) -> Any:
        return _ask("next", self)

    def __getitem__(self, key: object) -> Any:
        return _ask("getitem", self, key)

    def __setitem__(self, key: object, value: object) -> None:
        _ask("setitem", self, key, value)

    def __delitem__(self, key: object) -> None:
        _ask("delitem", self, key)

    def __contains__(self, item: object) -> bool:
        return _ask("contains", self, item) is True

    def __enter__(self) -> Any:
        return _ask("enter", self)

    def __exit__(self, *_: object) -> None:
        _ask("exit", self)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Far) and _ask("isinstance", self, value) is True

    def __str__(self) -> str:
        return _ask("str", self)

    def __repr__(self) -> str:
        return _ask("repr", self)


def _ask(operation: str, target: Far, *args: Any, **kwargs: Any) -> Any:
    link: _Link = object.__getattribute__(target, "_link")
    return link.ask(operation, target, *args, **kwargs)
