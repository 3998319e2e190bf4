"""Makes the paths of a recipe absolute, so that they hold in any working directory.

./rewards.py:f  ../models/tiny  prompts.jsonl     looked for beside the file that names it,
                                                  then beside the recipe, then in the working
                                                  directory; the first that exists is it
openai/gsm8k    Qwen/Qwen3-0.6B                   a hub id, where no such path exists
run.dir  sync.path                                written, so relative to the working directory
"""

import ast
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from asyncgrpo.config.problems import Key, Origin, nearest
from asyncgrpo.config.reading.built_in import PLACES, built_in_names, is_own
from asyncgrpo.config.reading.merge import Merged, origin_of, value_at

HUB_OR_PATH: tuple[Key, ...] = (
    ("model", "name_or_path"),
    ("data", "path"),
    ("data", "eval", "path"),
)
WRITTEN: tuple[Key, ...] = (("run", "dir"), ("sync", "path"))
DATA_FILES = (".json", ".jsonl", ".csv", ".parquet")
ANYTHING = {"*", "__getattr__", "globals"}  # a module with one of these may define any name
IMPORTS: tuple[Key, ...] = (("rollout", "loop"), ("rollout", "environments"))
IMPORT_LISTS: tuple[Key, ...] = (("rollout", "rewards"), ("rollout", "tools"))


@dataclass
class Resolver:
    """Resolves the paths of one recipe in place.

    With `must_exist` false a path that is not there stays as it is: a recipe can be checked
    before its model or data has been fetched.
    """

    merged: Merged
    recipe: str
    must_exist: bool = True
    working_dir: Path = field(default_factory=Path.cwd)

    def run(self) -> None:
        """Make every path of the tree absolute; one that is not there becomes a problem."""
        for key in HUB_OR_PATH:
            self._each(key, self._hub_or_path)
        for key in WRITTEN:
            self._each(key, self._written)
        self._each(("rollout", "chat_template"), self._template)
        self._each(("server", "python"), self._interpreter)
        for key in _import_paths(self.merged.tree):
            self._each(key, self._import_path)
        for key in PLACES:
            self._each(key, self._built_in_or_own)

    def _each(self, key: Key, resolve: Callable[[Key, str], str]) -> None:
        try:
            text = value_at(self.merged.tree, key)
        except (KeyError, TypeError, IndexError):
            return
        if isinstance(text, str) and text and key not in self.merged.bad:
            cast("Any", value_at(self.merged.tree, key[:-1]))[key[-1]] = resolve(key, text)

    def _written(self, _: Key, text: str) -> str:
        return str(self._absolute(self.working_dir, text))

    def _hub_or_path(self, key: Key, text: str) -> str:
        found = self._find(key, text)
        if found is None and (_looks_like_path(text) or text.endswith(DATA_FILES)):
            return self._missing(key, text)
        return text if found is None else str(found)

    def _template(self, key: Key, text: str) -> str:
        if "\n" in text or "{" in text:
            return text
        found = self._find(key, text)
        return self._missing(key, text) if found is None else str(found)

    def _interpreter(self, key: Key, text: str) -> str:
        if os.sep not in text:
            return text  # found on PATH
        found = self._find(key, text)
        return self._missing(key, text) if found is None else str(found)

    def _built_in_or_own(self, key: Key, text: str) -> str:
        if is_own(text) or text.endswith(".py"):
            return self._import_path(key, text)
        names = built_in_names(key)
        if text not in names:
            meant = nearest(text, names)
            hint = f"; did you mean `{meant}`?" if meant else ""
            expected = f"{', '.join(names)}, package.module:name or ./file.py:name"
            self.merged.refuse(key, f"got '{text}', expected {expected}{hint}")
        return text

    def _import_path(self, key: Key, text: str) -> str:
        place, colon, name = text.rpartition(":")
        if not colon or not place or not name.replace(".", "_").isidentifier():
            message = f"got '{text}', expected package.module:name or ./file.py:name"
            self.merged.refuse(key, message)
            return text
        if not place.endswith(".py"):
            if not all(part.isidentifier() for part in place.split(".")):
                message = f"got '{text}', expected package.module:name or ./file.py:name"
                self.merged.refuse(key, message)
            return text
        found = self._find(key, place)
        if found is None:
            return self._missing(key, place) + f":{name}"
        problem = not_defined(found, name.partition(".")[0])
        if problem:
            self.merged.refuse(key, problem)
        return f"{found}:{name}"

    def _find(self, key: Key, text: str) -> Path | None:
        for folder in self._folders(key):
            path = self._absolute(folder, text)
            if path.exists():
                return path
        return None

    def _folders(self, key: Key) -> list[Path]:
        origin = origin_of(key, self.merged.origins, Origin(self.recipe))
        named_by = self.recipe if origin.line is None else origin.file
        folders = [Path(named_by).parent, Path(self.recipe).parent, Path()]
        return list(dict.fromkeys(self._absolute(self.working_dir, str(f)) for f in folders))

    @staticmethod
    def _absolute(folder: Path, text: str) -> Path:
        # normpath, not resolve: a virtual environment's python is a link that must stay one
        return Path(os.path.normpath(folder / Path(text).expanduser()))

    def _missing(self, key: Key, text: str) -> str:
        if self.must_exist:
            places = dict.fromkeys(str(self._absolute(f, text)) for f in self._folders(key))
            self.merged.refuse(key, f"no such file or folder: looked for {', '.join(places)}")
        return text


def _looks_like_path(text: str) -> bool:
    return text.startswith(("./", "../", "/", "~")) or text.count("/") > 1


def _import_paths(tree: Mapping[str, Any]) -> Iterator[Key]:
    rollout = tree.get("rollout")
    if not isinstance(rollout, Mapping):
        return
    for _, name in IMPORTS:
        value = cast("Mapping[str, Any]", rollout).get(str(name))
        yield from _texts(("rollout", name), value)
    for _, name in IMPORT_LISTS:
        value = cast("Mapping[str, Any]", rollout).get(str(name))
        if isinstance(value, str):
            yield ("rollout", name)
        elif isinstance(value, list):
            for index, entry in enumerate(cast("list[object]", value)):
                is_record = isinstance(entry, Mapping)
                yield ("rollout", name, index, "path") if is_record else ("rollout", name, index)


def _texts(key: Key, value: object) -> Iterator[Key]:
    """The keys of import paths: of a text, a record, or several by name."""
    if isinstance(value, str):
        yield key
    elif isinstance(value, Mapping):
        for name, below in cast("Mapping[str, object]", value).items():
            if name != "kwargs":
                yield from _texts((*key, name), below)


def not_defined(file: Path, name: str) -> str | None:
    """The problem if `file` does not define `name`; the file is not run."""
    try:
        module = ast.parse(file.read_text(encoding="utf-8"), filename=file.name)
    except (SyntaxError, UnicodeDecodeError) as error:
        return f"{file} is not valid Python: {error}"
    names = set(_defined_names(module))
    if name in names or names & ANYTHING:
        return None
    meant = nearest(name, names)
    hint = f"; did you mean `{meant}`?" if meant else ""
    return f"{file} defines no `{name}`{hint}"


def _defined_names(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Name(id="globals"):
                yield "globals"
            case ast.alias(name=name, asname=asname):
                yield asname or name.partition(".")[0]
            case _:
                pass
