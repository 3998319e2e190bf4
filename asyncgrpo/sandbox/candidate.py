"""The candidate: runs the program that is judged, then answers the judge's requests.

    run(code) -> its names --> judge
    judge --[operation, handle, arguments]--> here --[returned | raised | callback]--> judge

Nothing here is trusted by the judge: an answer is data, whoever wrote it.
"""

import inspect
import operator
import sys
from collections.abc import Callable
from typing import IO, Any

from asyncgrpo.sandbox import frames, values
from asyncgrpo.sandbox.values import Wire

MODULE = "solution"


def _call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _is_of(kind: type, value: object) -> bool:
    return isinstance(value, kind)


def _enter(context: Any) -> Any:
    return context.__enter__()


def _exit(context: Any) -> None:
    context.__exit__(None, None, None)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": _call, "getattr": getattr, "setattr": setattr, "iter": iter, "next": next, "len": len,
    "getitem": operator.getitem, "setitem": operator.setitem, "delitem": operator.delitem,
    "contains": operator.contains, "bool": bool, "str": str, "repr": repr, "eq": operator.eq,
    "isinstance": _is_of, "enter": _enter, "exit": _exit,
}  # fmt: skip


def serve(code: str, requests: IO[bytes], answers: IO[bytes]) -> None:
    """Run the program, send the names it defined, and answer until the judge is done."""
    _Server(requests, answers).run(code)


def run_as_main(code: str) -> None:
    """Run a program that reads stdin and writes stdout."""
    exec(compile(code, "solution.py", "exec"), _namespace("__main__"))  # noqa: S102 - confined


def _namespace(name: str) -> dict[str, Any]:
    module = type(sys)(name)
    sys.modules[name] = module  # dataclasses and pickle look it up there
    return vars(module)


class _Server:
    def __init__(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._requests, self._answers = requests, answers
        self._objects: list[object] = []  # by handle, kept alive

    def run(self, code: str) -> None:
        namespace = _namespace(MODULE)
        try:
            exec(compile(code, "solution.py", "exec"), namespace)  # noqa: S102 - confined
        except BaseException as error:  # noqa: BLE001 - SystemExit too: it did not come to its end
            frames.send(self._answers, {"failed": _told(error)})
            return
        names = {k: self._export(v) for k, v in namespace.items() if not k.startswith("__")}
        frames.send(self._answers, {"names": names})
        self._answer_until(lambda _: False)

    def _answer_until(self, is_last: Callable[[Any], bool]) -> Any:
        """Answer requests until `is_last` of a message; return that message."""
        while True:
            request = frames.receive(self._requests)
            if is_last(request):
                return request
            try:
                answer = self._answer(*request)
            except BaseException as error:  # noqa: BLE001 - whatever the program raises
                answer = {"raised": [k.__name__ for k in type(error).__mro__], "text": _told(error)}
            frames.send(self._answers, answer)

    def _answer(self, operation: str, target: Wire, args: Wire, kwargs: Wire) -> dict[str, Any]:
        arguments = [self._decode(arg) for arg in args]
        keywords = {name: self._decode(value) for name, value in kwargs.items()}
        result = OPERATIONS[operation](self._decode(target), *arguments, **keywords)
        answer = {"returned": self._encode(result)}
        now = [self._encode(argument) for argument in arguments]
        if now != args:  # changed in place: the judge changes its own
            answer["arguments"] = now
        return answer

    def _export(self, value: Any) -> Wire:
        """A name's value; a module is named, for the judge to import itself."""
        return ["module", value.__name__] if inspect.ismodule(value) else self._encode(value)

    def _encode(self, value: object) -> Wire:
        return values.encode(value, self._refer)

    def _refer(self, value: object) -> Wire:
        if isinstance(value, _Callback):
            return ["near", value.handle]
        self._objects.append(value)
        return ["far", len(self._objects) - 1]

    def _decode(self, wire: Wire) -> Any:
        return values.decode(wire, self._resolve)

    def _resolve(self, kind: str, handle: Any) -> object:
        return self._objects[handle] if kind == "near" else _Callback(self, handle)

    def call_back(self, handle: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of the judge's."""
        frames.send(
            self._answers,
            {
                "callback": handle,
                "args": [self._encode(arg) for arg in args],
                "kwargs": {name: self._encode(value) for name, value in kwargs.items()},
            },
        )
        answer = self._answer_until(lambda message: isinstance(message, dict))
        if "raised" in answer:
            raise values.builtin_exception(answer["raised"], answer["text"])
        return self._decode(answer["returned"])


class _Callback(values.Reference):
    """A function of the judge's, as the program sees it."""

    def __init__(self, server: _Server, handle: int) -> None:
        self.handle = handle
        self._server = server

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._server.call_back(self.handle, args, kwargs)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]
