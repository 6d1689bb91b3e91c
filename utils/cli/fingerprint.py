"""A checksum of a class that was defined in a notebook or a file of the user's: part of the identity of its runs.

It covers the class, its bases, and what its functions refer to outside themselves, as far as that is the user's, too:
functions and classes by their source, values by what they are. Code of the project and of installed packages is left
out, as it is for a `--plugin`.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from utils.cli.registry import ROOT
from utils.errors import UsageError

PACKAGES = [ROOT / name for name in ("backbone", "datasets", "models", "utils")]
STANDARD = Path(sysconfig.get_path("stdlib")).resolve()
# What Python and torch write into a class themselves.
WRITTEN = {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__firstlineno__"}
WRITTEN |= {"__static_attributes__", "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"}
WRITTEN |= {"__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__"}


def fingerprint(cls: type) -> str:
    return hashlib.sha256("\n".join(_Walk(cls).parts).encode()).hexdigest()


def is_users(module: str) -> bool:
    """Whether a module is neither the project's nor an installed one: a notebook, a script, a file beside it."""
    if module == "__main__":
        return True
    place = getattr(sys.modules.get(module), "__file__", None)
    if place is None:
        return False
    file = Path(place).resolve()
    if any(file.is_relative_to(package) for package in PACKAGES):
        return False
    return not {"site-packages", "dist-packages"} & set(file.parts) and not file.is_relative_to(STANDARD)


class _Walk:
    """From a class to all that it depends on; each thing once, in the order in which it is met."""

    def __init__(self, cls: type):
        self.parts: list[str] = []
        self._owner = cls.__name__
        self._met: set[int] = set()
        self._visit(cls.__name__, cls)

    def _visit(self, name: str, value: Any) -> None:
        if isinstance(value, type | FunctionType | ModuleType):
            if id(value) in self._met:
                return
            self._met.add(id(value))
            self._definition(name, value)
        elif inner := _functions_of(value):
            for function in inner:
                self._visit(name, function)
            if isinstance(value, partial):
                self.parts.append(f"{name}: {self._value(name, [value.args, value.keywords])}")
            elif isinstance(value, MethodType):
                self.parts.append(f"{name} of {self._value(name, value.__self__)}")
        elif isinstance(value, BuiltinFunctionType):
            self.parts.append(f"{name} = {value.__module__}.{value.__qualname__}")
        else:
            self.parts.append(f"{name} = {self._value(name, value)}")

    def _definition(self, name: str, value: Any) -> None:
        module = value.__name__ if isinstance(value, ModuleType) else value.__module__
        if not is_users(module):
            if not isinstance(value, ModuleType):
                self.parts.append(f"{name} = {module}.{value.__qualname__}")
        elif isinstance(value, ModuleType):
            self.parts.append(Path(value.__file__ or "").read_text(encoding="utf-8"))
            for inner, part in vars(value).items():
                elsewhere = getattr(part, "__module__", None) != value.__name__
                if elsewhere and isinstance(part, ModuleType | FunctionType | type):
                    self._visit(inner, part)
        elif isinstance(value, type):
            for base in value.__bases__:
                self._visit(f"base of {name}", base)
            for inner, part in vars(value).items():
                if inner not in WRITTEN:
                    self._visit(inner, part)
        else:
            self._function(value)

    def _function(self, function: FunctionType) -> None:
        try:
            self.parts.append(inspect.getsource(function.__code__))  # not of what a decorator has wrapped
        except (OSError, TypeError):
            raise UsageError(
                f"the source of {function.__qualname__} can't be read, and it is part of what identifies a run of "
                f"{self._owner}; define it in a notebook's cell or in a file"
            ) from None
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        outside = {name: cell.cell_contents for name, cell in cells if name != "__class__" and cell != CellType()}
        outside |= {n: function.__globals__[n] for n in _globals_in(function.__code__) if n in function.__globals__}
        outside |= function.__kwdefaults__ or {}
        outside |= {f"default {i}": value for i, value in enumerate(function.__defaults__ or ())}
        for name in sorted(outside):
            self._visit(name, outside[name])

    def _value(self, name: str, value: Any) -> str:
        """A text that is another one for another value."""
        if isinstance(value, list | tuple):
            return f"{type(value).__name__}{[self._value(name, item) for item in value]}"
        if isinstance(value, set | frozenset):
            return f"{type(value).__name__}{sorted(self._value(name, item) for item in value)}"
        if isinstance(value, dict):
            return f"dict{[(self._value(name, key), self._value(name, item)) for key, item in value.items()]}"
        if isinstance(value, type | FunctionType):
            self._visit(name, value)
            return value.__qualname__
        if hasattr(value, "__array__") and not (array := _array(value)).dtype.hasobject:
            return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
        text = repr(value)
        # A network shows its layers but not its weights; other objects, where they are in memory.
        if " at 0x" in text or hasattr(value, "state_dict") or is_users(type(value).__module__):
            raise UsageError(
                f"{self._owner} uses {name!r}, a {type(value).__name__} from outside the class, and a run can't be "
                "identified by its content; make it inside the class, or a flag of it"
            )
        return text


def _array(value: Any) -> Any:
    import numpy as np

    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _functions_of(value: Any) -> list[Any]:
    """The functions in what a class wraps them in: properties, static and class methods, `functools`' wrappers."""
    names = ("__func__", "fget", "fset", "fdel", "func", "__wrapped__")
    return [inner for name in names if isinstance(inner := getattr(value, name, None), FunctionType)]


def _globals_in(code: CodeType) -> Iterator[str]:
    """The names that a function, or one inside it, looks up outside."""
    yield from (str(i.argval) for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals_in(inner)
