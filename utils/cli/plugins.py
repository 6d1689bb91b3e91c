"""Files given by `--plugin`: code from elsewhere that becomes part of a run without being part of the project."""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from utils.errors import UsageError
from utils.resume.files import file_digest

ROOT = Path(__file__).resolve().parents[2]
MAMMOTH = ROOT / "utils" / "mammoth"
PACKAGES = ("models", "datasets", "backbone")
# Rooms of the framework in which a checkout has its own files; ours go first, or there would be two frameworks.
FRAMEWORKS = ("models.utils", "datasets.utils", "datasets.transforms", "backbone.utils", "utils")
PLUGIN_PREFIX = "plugin_"  # of the names of their modules
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


def checkout_folder(plugin: Path, package: str) -> Path:
    """Where the checkout of a plugin has a package; a file outside of all packages has everything beside it."""
    return plugin.parent.parent / package if plugin.parent.name in PACKAGES else plugin.parent


def load_file(file: Path) -> ModuleType:
    """Import a file under a name made of its own and its content: what is edited is another module."""
    version = file_digest(file)
    if parts := [f"{part} {file_digest(part)}" for part in helpers(file)]:
        version = hashlib.sha256("\n".join([version, *parts]).encode()).hexdigest()
    return _execute(file, f"{PLUGIN_PREFIX}{file.stem}_{version[:12]}", Home(file.parent, version))


@dataclass(frozen=True)
class Home:
    """Where a plugin lies, and a checksum of it and its helpers."""

    folder: Path
    version: str


def _load_helper(path: Path, home: Home) -> ModuleType:
    """Import what a plugin's checkout has beside it: a file, or a folder, with or without `__init__.py`."""
    if path.suffix == ".py" and path.parent == home.folder:
        return load_file(path)
    file = path if path.suffix == ".py" else path / "__init__.py"
    place = hashlib.sha256(f"{path} {home.version}".encode()).hexdigest()
    return _execute(file, f"{PLUGIN_PREFIX}{path.stem}_{place[:12]}", home)


def _execute(file: Path, name: str, home: Home) -> ModuleType:
    """Compiled here, not by Python's importer, which leaves a cache beside the file and trusts it by the second."""
    if name in sys.modules:
        return sys.modules[name]
    if name in _broken:
        raise _broken[name]
    module = ModuleType(name)
    module.__file__ = str(file)
    vars(module)["__builtins__"] = vars(builtins) | {"__import__": _importer(file.parent, home)}
    sys.modules[name] = module
    try:
        if file.is_file():
            exec(compile(file.read_bytes(), str(file), "exec"), vars(module))
    except BaseException as error:
        del sys.modules[name]
        _broken[name] = error
        raise
    return module


# -- what a plugin means by a name -------------------------------------------------------------------------------------


def _importer(folder: Path, home: Home) -> Callable[..., Any]:
    """The `import` of a file in `folder`, for a plugin in `home`.

    For it, `from models.gem import …` means a file beside it or another plugin first, and `models.star_utils.…` what
    its checkout has there; names of the framework mean ours. For everybody else a name stays what it is.
    """

    def import_(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if level:
            base = folder.parents[level - 2] if level > 1 else folder
            path = _at(base.joinpath(*name.split("."))) if name else base
            if path is None:
                raise ModuleNotFoundError(f"No module named {'.' * level + name!r} in {folder}", name=name)
            return _with_parts(_load_helper(path, home), path, fromlist, home)
        path = _find(name, home.folder)
        if path is not None and fromlist:
            return _with_parts(_load_helper(path, home), path, fromlist, home)
        if path is not None:
            return _chain(name, home)
        module = builtins.__import__(name, globals, locals, fromlist, level)
        theirs = {part: found for part in fromlist or () if (found := _find(f"{name}.{part}", home.folder))}
        return _Overlay(module, {part: _load_helper(p, home) for part, p in theirs.items()}) if theirs else module

    return import_


def _find(name: str, home: Path) -> Path | None:
    """Where a plugin's checkout has a module, if that is the one which the plugin means."""
    package, _, rest = name.partition(".")
    if not rest or package not in (*PACKAGES, "utils") or ("." in rest and home.parent == ROOT):
        return None
    framework = any(name == room or name.startswith(f"{room}.") for room in FRAMEWORKS)
    in_checkout = home.name in PACKAGES
    if (framework or (in_checkout and home.name != package)) and _is_ours(name):
        return None
    base = home.parent / package if in_checkout else home
    beside = base.joinpath(*rest.split("."))
    given = [file for file in _given if file.stem == rest]
    return next((path for path in (_at(beside), *given) if path is not None), None)


def _is_ours(name: str) -> bool:
    """Whether the project has a module of that name; `utils` consists of two folders (utils/__init__.py)."""
    package, _, rest = name.partition(".")
    folders = [ROOT / package, *([MAMMOTH / "surface"] if package == "utils" else [])]
    return any(_at(folder.joinpath(*rest.split("."))) for folder in folders)


def _at(path: Path) -> Path | None:
    """The file or folder of a module."""
    file = path.with_name(f"{path.name}.py")
    return file if file.is_file() else path if path.is_dir() else None


def _with_parts(module: ModuleType, path: Path, parts: Iterable[str], home: Home) -> ModuleType:
    """`from package import part`: files of a folder are its attributes once they are asked for."""
    for part in parts or ():
        if path.is_dir() and not hasattr(module, part) and (found := _at(path / part)):
            setattr(module, part, _load_helper(found, home))
    return module


def _chain(name: str, home: Home) -> ModuleType:
    """`import models.a.b` binds `models`: ours, in which `a.b` is the plugin's."""
    package, *parts = name.split(".")
    module, known = _load_helper(_found(name, home.folder), home), name
    for part in reversed(parts[1:]):
        known = known.rpartition(".")[0]
        parent = _load_helper(_found(known, home.folder), home)
        setattr(parent, part, module)
        module = parent
    return _Overlay(builtins.__import__(package), {parts[0]: module})


def _found(name: str, home: Path) -> Path:
    path = _find(name, home)
    if path is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return path


class _Overlay(ModuleType):
    """A package of the project in which some modules are a plugin's."""

    def __init__(self, ours: ModuleType, theirs: dict[str, ModuleType]):
        super().__init__(ours.__name__)
        self._ours = ours
        vars(self).update(theirs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ours, name)


# -- what a plugin consists of -----------------------------------------------------------------------------------------


def helpers(file: Path) -> list[Path]:
    """The files of its checkout's folders that a plugin imports, directly or through others: part of a run's identity.

    Read from the sources, because an import may come late. Files beside a plugin are models themselves, and not here.
    """
    found: dict[Path, None] = {}
    waiting = [file]
    while waiting:
        importing = waiting.pop()
        for path in _imported(importing, file.parent):
            if path not in found and path.parent != file.parent:
                found[path] = None
                waiting.append(path)
    return sorted(found)


def _imported(importing: Path, home: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(importing.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # reported when it is imported
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom) and node.level:
            base = importing.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            candidates = [_at(base), *(_at(base / name) for name in names)]
        else:
            module = getattr(node, "module", None)
            full = [module, *(f"{module}.{name}" for name in names)] if module else names
            candidates = [_find(name, home) for name in full]
        for path in filter(None, candidates):
            if (file := path / "__init__.py" if path.is_dir() else path).is_file():
                yield file


class _StandIns(importlib.abc.MetaPathFinder):
    """Modules under names that belong to a model: found by whoever imports the name where no file has it."""

    FILES = {"models.gem": MAMMOTH / "gem.py", "utils.buffer_lws": MAMMOTH / "buffer_lws.py"}

    def find_spec(self, name: str, *_: Any) -> Any:
        return importlib.util.spec_from_file_location(name, self.FILES[name]) if name in self.FILES else None


sys.meta_path.append(_StandIns())  # asked last
