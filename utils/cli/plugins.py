"""Files given by `--plugin`: code from elsewhere that becomes part of a run without being part of the project."""

from __future__ import annotations

import builtins
import hashlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from utils.errors import UsageError

PACKAGES = ("models", "datasets", "backbone")
_broken: dict[str, BaseException] = {}  # by the name of the module: what has failed is not tried again
_given: list[Path] = []  # all plugins of the command line


def plugin_files(given: Iterable[str]) -> list[Path]:
    """The files, as absolute paths, because a run may be resumed from another working directory."""
    files = [Path(name).absolute() for name in given]
    for file in files:
        if not file.is_file():
            raise UsageError(f"--plugin {file}: no such file; give the path of a Python file")
    _given[:] = files
    return files


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def load_file(file: Path) -> ModuleType:
    """Import a file under a name made of its own and its content: what is edited is another module.

    It is compiled here, not by Python's importer, which leaves a cache beside the file and trusts it by the second.
    """
    name = f"plugin_{file.stem}_{digest(file)[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    if name in _broken:
        raise _broken[name]
    module = ModuleType(name)
    module.__file__ = str(file)
    vars(module)["__builtins__"] = vars(builtins) | {"__import__": _importer(file.parent)}
    sys.modules[name] = module
    try:
        exec(compile(file.read_bytes(), str(file), "exec"), vars(module))
    except BaseException as error:
        del sys.modules[name]
        _broken[name] = error
        raise
    return module


def _importer(folder: Path) -> Callable[..., Any]:
    """The `import` of a plugin: for it, `from models.gem import …` means a file beside it or another plugin first.

    For everybody else such a name stays what it is in the project.
    """

    def import_(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        package, _, stem = name.partition(".")
        if fromlist and level == 0 and package in PACKAGES:
            for file in (folder / f"{stem}.py", *(file for file in _given if file.stem == stem)):
                if file.is_file():
                    return load_file(file)
        return builtins.__import__(name, globals, locals, fromlist, level)

    return import_
