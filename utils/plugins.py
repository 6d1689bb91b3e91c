"""Files given by `--plugin`: code from elsewhere that becomes part of a run without being part of the project."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from utils.errors import UsageError

PACKAGES = ("models", "datasets", "backbone")
_broken: dict[str, BaseException] = {}  # by the name of the module: what has failed is not tried again


def plugin_files(given: Iterable[str]) -> list[Path]:
    """The files, as absolute paths, because a run may be resumed from another working directory."""
    files = [Path(name).absolute() for name in given]
    for file in files:
        if not file.is_file():
            raise UsageError(f"--plugin {file}: no such file; give the path of a Python file")
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
    _find_siblings(file.parent)
    sys.modules[name] = module
    try:
        exec(compile(file.read_bytes(), str(file), "exec"), vars(module))
    except BaseException as error:
        del sys.modules[name]
        _broken[name] = error
        raise
    return module


def _find_siblings(folder: Path) -> None:
    """Let `from models.gem import …` find a file beside the plugin. Our own files come first and stay what they are."""
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        if str(folder) not in path:
            path.append(str(folder))
