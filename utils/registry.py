"""Find models, datasets and backbones by reading source files, without importing them.

Importing every file of a folder to learn the names in it takes seconds (each pulls in torch) and lets one broken file
take all the others down. The names are literals in the source, so the syntax tree is enough: a listing is
instant, and a module is imported only when its name is asked for.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from utils.errors import UsageError, nearest

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Entry:
    """A registered name: where it is defined and the first line of its documentation."""

    name: str
    module: str
    symbol: str
    summary: str

    def load_module(self) -> ModuleType:
        return importlib.import_module(self.module)

    def load(self) -> object:
        return getattr(self.load_module(), self.symbol)


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
    if isinstance(node, ast.ClassDef):
        for statement in node.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
                targets = [target.id for target in statement.targets if isinstance(target, ast.Name)]
                if "NAME" in targets and isinstance(statement.value.value, str):
                    return statement.value.value
    return None


def _entries_of_file(path: Path, package: str, decorator: str) -> Iterator[Entry]:
    module = f"{package}.{path.stem}"
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        # Listed under the file's name, so that whoever asks for it sees its own error; the others are unharmed.
        yield Entry(normalise(path.stem), module, "", f"(cannot be read: {error})")
        return
    module_doc = (ast.get_docstring(tree) or "").partition("\n")[0]
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            name = _literal_name(node, decorator)
            if name:
                summary = (ast.get_docstring(node) or "").partition("\n")[0] or module_doc
                yield Entry(normalise(name), module, node.name, summary)


def scan(package: str, decorator: str) -> dict[str, Entry]:
    """All names registered by the files that lie directly in a package's folder."""
    files = sorted(path for path in (ROOT / package).glob("*.py") if not path.name.startswith("_"))
    entries = (entry for path in files for entry in _entries_of_file(path, package, decorator))
    return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}


def find(kind: str, name: str, entries: dict[str, Entry]) -> Entry:
    """The entry of a name, or a usage error with the nearest valid one."""
    name = normalise(name)
    if name not in entries:
        raise UsageError(f"unknown {kind} {name!r}{nearest(name, entries)}")
    return entries[name]
