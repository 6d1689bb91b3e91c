"""Find models, datasets and backbones by reading source files, without importing them.

Importing every file of a folder to learn the names in it takes seconds (each pulls in torch) and lets one broken file
take all the others down. The names are literals in the source, so the syntax tree is enough: a listing is
instant, and a module is imported only when its name is asked for.
"""

from __future__ import annotations

import ast
import importlib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from utils.errors import UsageError, UserError, nearest

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Entry:
    """A registered name: where it is defined and the first line of its documentation."""

    name: str
    module: str
    symbol: str
    summary: str

    def load(self) -> object:
        """Import the module; a broken one is reported with its own error, and only to those who ask for it."""
        try:
            return getattr(importlib.import_module(self.module), self.symbol)
        except UserError:
            raise
        except Exception as error:  # whatever the file raises
            file = self.module.replace(".", "/") + ".py"
            reason = " ".join(str(error).split())
            raise UserError(
                f"{file} cannot be imported: {type(error).__name__}: {reason}{_line_in(file, error)}"
            ) from error


def _line_in(file: str, error: Exception) -> str:
    """` (line n)` of the deepest frame in a file."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(file)]
    return f" (line {lines[-1]})" if lines else ""


def normalise(name: str) -> str:
    """Mammoth's rule: `er_ace` and `er-ace` are the same name; case and outer blanks don't matter."""
    return name.strip().replace("_", "-").lower()


def _literal_name(node: ast.ClassDef | ast.FunctionDef, decorator: str) -> str | None:
    """The name that a definition registers: by `@decorator('name')`, or by `NAME = 'name'` in a class body."""
    for call in node.decorator_list:
        if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant):
            function = call.func
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
            if called == decorator:
                return str(call.args[0].value)
    for statement in node.body if isinstance(node, ast.ClassDef) else []:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        value = getattr(statement, "value", None)
        if any(getattr(target, "id", None) == "NAME" for target in targets) and isinstance(value, ast.Constant):
            return str(value.value)
    return None


@cache
def _entries_of_file(path: Path, package: str, decorator: str, changed: int) -> tuple[Entry, ...]:
    """Read once, and again if the file has `changed` (its time of modification)."""
    return tuple(_read_entries(path, package, decorator))


def _read_entries(path: Path, package: str, decorator: str) -> Iterator[Entry]:
    module = f"{package}.{path.stem}"
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        # Listed under the file's name, so that whoever asks for it sees its own error; the others are unharmed.
        yield Entry(normalise(path.stem), module, "", f"(cannot be read: {error})")
        return
    module_doc = (ast.get_docstring(tree) or "").partition("\n")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            name = _literal_name(node, decorator)
            if name:
                summary = (ast.get_docstring(node) or "").partition("\n")[0] or module_doc
                yield Entry(normalise(name), module, node.name, summary)


def scan(package: str, decorator: str) -> dict[str, Entry]:
    """All names registered by the files that lie directly in a package's folder."""
    files = sorted(path for path in (ROOT / package).glob("*.py") if not path.name.startswith("_"))
    entries = (entry for path in files for entry in _entries_of_file(path, package, decorator, path.stat().st_mtime_ns))
    return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}


def find(kind: str, name: str, entries: dict[str, Entry]) -> Entry:
    """The entry of a name, or a usage error with the nearest valid one."""
    name = normalise(name)
    if name not in entries:
        raise UsageError(f"unknown {kind} {name!r}{nearest(name, entries)}")
    return entries[name]
