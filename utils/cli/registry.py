"""Find models, datasets and backbones by reading source files, without importing them.

Importing every file of a folder to learn the names in it takes seconds (each pulls in torch) and lets one broken file
take all the others down. The names are nearly always literals in the source, so the syntax tree is enough: a listing is
instant, and a module is imported only when its name is asked for. A file whose names are computed is imported when a
name is asked for that no other file has. Files given by `--plugin` come first.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from utils.cli.plugins import PLUGIN_PREFIX, ROOT, load_file
from utils.errors import UsageError, UserError, nearest

DEFAULT_DATASET = "seq-embeddings"  # it needs no download, and seconds per run
Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Kind:
    """One sort of thing that files define."""

    name: str
    package: str
    base: str = ""  # the class that all of this kind come from; empty if only the decorator tells
    registered: dict[str, Any] = field(default_factory=dict)  # filled by the decorator when a file is imported

    @property
    def decorator(self) -> str:
        return f"register_{self.name}"

    def register(self, name: str) -> Callable[[Thing], Thing]:
        """Decorator that registers a class or a factory under a name (a class attribute `NAME` does the same)."""

        def add(thing: Thing) -> Thing:
            self.registered[normalise(name)] = thing
            return thing

        return add


@dataclass(frozen=True)
class Entry:
    """A name: the file and the object in it, and the first line of its documentation."""

    name: str
    file: Path
    symbol: str  # empty if the file cannot be read
    summary: str
    module: str  # empty for a plugin, which belongs to no package

    @property
    def sha256(self) -> str | None:
        """Checksum of a definition that is in no file; else None."""
        return None

    @property
    def presets(self) -> str:
        """The name by which `models/config` has its defaults."""
        return self.name

    @property
    def place(self) -> str:
        return f"{self.module.replace('.', '/')}.py" if self.module else str(self.file)

    def load(self) -> Any:
        found = getattr(_import(self.file, self.module, self.place), self.symbol, None)
        if found is None:
            raise UserError(f"{self.place} has no {self.symbol}, called {self.name!r}, once it is imported")
        return found


@dataclass(frozen=True)
class Registered(Entry):
    """What code of this process has registered by a decorator, and no file of the package or plugin."""

    value: Any

    @property
    def sha256(self) -> str:
        """SHA-256 of its source, or of its name if it was typed at a prompt."""
        try:
            source = inspect.getsource(self.value)
        except (OSError, TypeError):
            source = self.symbol
        return hashlib.sha256(source.encode()).hexdigest()

    def load(self) -> Any:
        return self.value


def _import(file: Path, module: str, place: str) -> ModuleType:
    """A broken file is reported with its own error, and only to those who ask for it."""
    try:
        return importlib.import_module(module) if module else load_file(file)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # whatever the file raises
        reason = " ".join(str(error).split())
        raise UserError(
            f"{place} cannot be imported: {type(error).__name__}: {reason}{_line_in(place, error)}"
        ) from error


def _line_in(file: str, error: BaseException) -> str:
    """` (line n)` of the deepest frame in a file."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(file)]
    return f" (line {lines[-1]})" if lines else ""


def normalise(name: str) -> str:
    """Mammoth's rule: `er_ace` and `er-ace` are the same name; case and outer blanks don't matter."""
    return name.strip().replace("_", "-").lower()


# -- the names in a file -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """What a file says about its names before it is imported."""

    file: Path
    module: str
    entries: tuple[Entry, ...]
    computed: bool  # there may be more names than the entries'


def _naming(node: ast.ClassDef | ast.FunctionDef, decorator: str) -> ast.expr | None:
    """What names a definition: the argument of `@decorator('name')`, or `NAME = 'name'` in a class body."""
    for call in node.decorator_list:
        if isinstance(call, ast.Call) and call.args:
            function = call.func
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
            if called == decorator:
                return call.args[0]
    for statement in node.body if isinstance(node, ast.ClassDef) else []:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        for target in filter(None, targets):
            if any(getattr(part, "id", None) == "NAME" for part in ast.walk(target)):
                return getattr(statement, "value", None)
    return None


@cache
def _read(file: Path, module: str, decorator: str, changed: int) -> _Source:
    """Read once, and again if the file has `changed` (its time of modification)."""
    try:
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        # Listed under the file's name, so that whoever asks for it sees its own error; the others are unharmed.
        entry = Entry(normalise(file.stem), file, "", f"(cannot be read: {error})", module)
        return _Source(file, module, (entry,), computed=False)
    module_doc = (ast.get_docstring(tree) or "").partition("\n")[0]
    entries, computed = [], False
    for node in ast.walk(tree):
        naming = _naming(node, decorator) if isinstance(node, ast.ClassDef | ast.FunctionDef) else None
        if isinstance(naming, ast.Constant) and naming.value and isinstance(node, ast.ClassDef | ast.FunctionDef):
            summary = (ast.get_docstring(node) or "").partition("\n")[0] or module_doc
            entries.append(Entry(normalise(str(naming.value)), file, node.name, summary, module))
        computed |= naming is not None and not isinstance(naming, ast.Constant)
    names_something = decorator in text or "NAME" in text  # else it holds what others share, and is not imported
    return _Source(file, module, tuple(entries), computed or (names_something and not entries))


def _names_in(module: ModuleType, kind: Kind) -> dict[str, str]:
    """Name → symbol of what an imported file defines."""
    own = {symbol: value for symbol, value in vars(module).items() if _is_defined_in(value, module)}
    registered = {id(value): name for name, value in kind.registered.items()}
    names = {registered[id(value)]: symbol for symbol, value in own.items() if id(value) in registered}
    for symbol, value in own.items():
        name = getattr(value, "NAME", None)
        if inspect.isclass(value) and name and any(base.__name__ == kind.base for base in value.__mro__[1:]):
            names[normalise(str(name))] = symbol
    return names


def _is_defined_in(value: Any, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


# -- the names of a kind -----------------------------------------------------------------------------------------------


def _sources(kind: Kind, plugins: Sequence[str] = ()) -> Iterator[_Source]:
    """The files of the package; or the plugins."""
    if plugins:
        for file in map(Path, plugins):
            yield _read(file, "", kind.decorator, file.stat().st_mtime_ns)
        return
    for file in sorted(path for path in (ROOT / kind.package).glob("*.py") if not path.name.startswith("_")):
        try:
            source = _read(file, f"{kind.package}.{file.stem}", kind.decorator, file.stat().st_mtime_ns)
        except FileNotFoundError:  # it was removed since it was listed, as an editor does with its own
            continue
        yield source


def _in_process(kind: Kind) -> dict[str, Entry]:
    """What code of this process has registered by the decorator, such as a notebook's or a test's."""
    entries: dict[str, Entry] = {}
    for name, value in kind.registered.items():
        module = str(value.__module__)
        if module.partition(".")[0] != kind.package and not module.startswith(PLUGIN_PREFIX):
            summary = (inspect.getdoc(value) or "").partition("\n")[0]
            place = Path(getattr(sys.modules.get(module), "__file__", None) or module)
            entries[name] = Registered(name, place, value.__qualname__, summary, "", value)
    return entries


def _by_name(sources: Iterator[_Source]) -> dict[str, list[Entry]]:
    """All entries of a name, the one that wins last.

    Where two files have the same name, one that is not called so was added to one that is, and wins; a file that
    cannot be read never does.
    """
    found: dict[str, list[Entry]] = {}
    for entry in (entry for source in sources for entry in source.entries):
        found.setdefault(entry.name, []).append(entry)
    for entries in found.values():
        entries.sort(key=lambda entry: (entry.symbol != "", normalise(entry.file.stem) != entry.name))
    return found


def _working(entries: list[Entry]) -> Entry:
    """The winner, unless its file is broken and another one has the name, too."""
    for entry in reversed(entries[1:]):
        try:
            entry.load()
            return entry
        except UserError as error:
            logging.warning("%s", error)
    return entries[0]


def scan(kind: Kind, plugins: Sequence[str] = ()) -> dict[str, Entry]:
    """All names that can be read: of the files in the package's folder, of this process, and of the plugins."""
    found = {name: entries[-1] for name, entries in _by_name(_sources(kind)).items()}
    return dict(sorted((found | _in_process(kind) | scan_plugins(kind, plugins)).items()))


def scan_plugins(kind: Kind, plugins: Sequence[str]) -> dict[str, Entry]:
    """The names that can be read in the plugins alone."""
    return {name: entries[-1] for name, entries in _by_name(_sources(kind, plugins)).items()} if plugins else {}


def find(kind: Kind, name: str, plugins: Sequence[str] = ()) -> Entry:
    """The entry of a name, a plugin's first, then this process's own, or a usage error with the nearest valid one.

    As a last resort every plugin is imported, because there are ways to name a class that its source does not show.
    """
    typed, name = name.strip(), normalise(name)
    failed: dict[str, None] = {}
    ours: tuple[Sequence[str], bool] = ((), False)
    for files, imported in ((plugins, False), ours, (plugins, True)) if plugins else (ours,):
        named = _by_name(_sources(kind, files)).get(name)
        entry = None if files else _in_process(kind).get(name)
        entry = entry or ((named[-1] if files else _working(named)) if named else None)
        entry = entry or _find_computed(kind, name, _sources(kind, files), imported, failed)
        if entry is not None:
            return entry
    reasons = "".join(f"; {reason}" for reason in failed)
    # With underscores for whoever types underscores.
    names = [other.replace("-", "_") if "_" in typed else other for other in scan(kind, plugins)]
    raise UsageError(f"unknown {kind.name} {typed!r}{nearest(typed.lower(), names)}{reasons}")


def _find_computed(
    kind: Kind, name: str, sources: Iterator[_Source], imported: bool, failed: dict[str, None]
) -> Entry | None:
    """Import the files that may have names which can't be read from their source; or (`imported`) all of them."""
    for source in sources:
        if source.computed or imported:
            place = Entry(name, source.file, "", "", source.module).place
            try:
                symbol = _names_in(_import(source.file, source.module, place), kind).get(name)
            except UserError as error:  # a broken file does not hinder the others
                failed[str(error)] = None
                continue
            if symbol:
                return Entry(name, source.file, symbol, "", source.module)
    return None


def refuse_useless(kinds: Sequence[Kind], plugins: Sequence[str]) -> None:
    """Refuse a plugin that would change only the run's hash.

    A plugin that fails to import is not refused here, because what it would offer is unknown; nor is one that another
    plugin imports.
    """
    for plugin in plugins:
        remedy = "give a Python file that defines one, or leave it out"
        if not plugin.endswith(".py"):
            raise UsageError(f"--plugin {plugin}: no model, dataset or backbone, since it is no .py file; {remedy}")
        if reason := _syntax_error(Path(plugin)):
            raise UsageError(f"--plugin {plugin} is not valid Python: {reason}; correct it, or leave it out")
        others = [Path(other) for other in plugins if other != plugin]
        if not _offers(kinds, Path(plugin)) and not any(_mentions(other, Path(plugin).stem) for other in others):
            raise UsageError(f"--plugin {plugin}: it has no model, dataset or backbone; {remedy}")


def _syntax_error(file: Path) -> str | None:
    try:
        ast.parse(file.read_bytes())
    except SyntaxError as error:
        return f"{error.msg}, line {error.lineno}" if error.lineno else str(error.msg)
    except (ValueError, RecursionError, MemoryError) as error:  # zero bytes, and what is nested too deeply
        return str(error) or type(error).__name__
    return None


def _offers(kinds: Sequence[Kind], file: Path) -> bool:
    if any(source.entries for kind in kinds for source in _sources(kind, [str(file)])):
        return True
    try:
        module = _import(file, "", str(file))
    except UserError:
        return True
    return any(_names_in(module, kind) for kind in kinds)


def _mentions(file: Path, stem: str) -> bool:
    return re.search(rf"\b{re.escape(stem)}\b", file.read_text(encoding="utf-8", errors="replace")) is not None


def announce(kind: Kind, entry: Entry) -> None:
    """Say that a name means another file than one would think."""
    taken = {other.place for source in _sources(kind) for other in source.entries if other.name == entry.name}
    for place in sorted(taken - {entry.place}):
        logging.warning("%s %s is that of %s, not that of %s", kind.name, entry.name, entry.place, place)
