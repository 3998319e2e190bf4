"""User code, named in the recipe by import path.

    package.module:name       imported as usual (the working directory is on the path)
    /absolute/file.py:name    loaded from the file; files beside it can be imported

The launcher resolves `./file.py:name` against the recipe's folder before a worker reads it.
"""

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from asyncgrpo.errors import HookError
from asyncgrpo.process.user_code import describe_hook_error


def load_object(path: str, *, key: str) -> Any:
    """The object named by `path`; `key` is the recipe's key, for the message.

    Raises:
        HookError: the path is malformed, or its module or name is missing or fails to load.
    """
    module_path, separator, name = path.rpartition(":")
    if not separator or not module_path or not name:
        raise HookError(f"{key}: got `{path}`, expected `package.module:name` or `./file.py:name`")
    module = _load_module(module_path, key=key)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise HookError(f"{key}: `{module_path}` has no `{name}`; {_names(module)}")
        found = getattr(found, part)
    return found


def _load_module(module_path: str, *, key: str) -> ModuleType:
    if module_path.endswith(".py"):
        return _load_file(Path(module_path), key=key)
    try:
        return importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        if error.name is not None and module_path.startswith(error.name):
            raise HookError(
                f"{key}: no module `{error.name}` (for `{module_path}`); start from the folder "
                "that holds it, or name a file: `./file.py:name`"
            ) from error
        raise HookError(f"{key}: importing `{module_path}` failed: {error}") from error
    except (Exception, SystemExit) as error:
        raise HookError(
            f"{key}: importing `{module_path}` failed: {describe_hook_error(error)}"
        ) from error


def _load_file(file: Path, *, key: str) -> ModuleType:
    if not file.is_file():
        raise HookError(f"{key}: no file `{file}`")
    digest = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:8]
    module_name = f"asyncgrpo_user_{file.stem}_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None and spec.loader is not None  # noqa: PT018 - a .py file has both
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    sys.modules[module_name] = module  # dataclasses and pickle look their module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script may exit where nothing guards its end
        del sys.modules[module_name]
        raise HookError(f"{key}: loading `{file}` failed: {describe_hook_error(error)}") from error
    return module


def _names(module: ModuleType) -> str:
    public = sorted(name for name in vars(module) if not name.startswith("_"))
    return f"it has {', '.join(public[:12]) or 'no public name'}"
