"""`run(model=…, lr=0.1, …)` as the command line that means the same; its model may be a class that no file names."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.cli.fingerprint import fingerprint, is_users
from utils.cli.flags import framework_parser
from utils.cli.parser import ArgumentParser
from utils.cli.registry import Entry, Registered, normalise
from utils.errors import UsageError

BASE = "ContinualModel"
SEED = 0  # without one every call would be another run, and none could be found again or resumed


def command_line(model: Any, flags: Mapping[str, Any], unnamed: Sequence[Any] = ()) -> tuple[list[str], Entry | None]:
    """Tokens as a shell would pass them, and what `--model` means if it is a class."""
    if unnamed:
        raise UsageError(f"{unnamed[0]!r} needs a flag's name; only the model goes without one: run('er', dataset=…)")
    name, entry = model, None
    if isinstance(model, type):
        name, entry = name_of(model), entry_of(model)
    elif not isinstance(model, str | None):
        raise UsageError(f"model: {model!r} is neither a name nor a class; `python main.py --list` shows all names")
    given = {"model": name, **flags}
    if given.get("resume") is None:
        given.setdefault("seed", SEED)
    parser = framework_parser()
    return [token for name, value in given.items() for token in tokens(parser, name, value)], entry


def tokens(parser: ArgumentParser, name: str, value: Any) -> list[str]:
    """`None` is a flag that is not given."""
    flag, action = f"--{name}", parser.actions_by_dest().get(name)
    if value is None:
        return []
    if action is not None and action.nargs == 0:
        raise UsageError(f"{name} is for the command line: python main.py {flag}")
    if not _is_several(value):
        return [f"{flag}={_text(name, value)}"]
    texts = [_text(name, item) for item in value]
    if isinstance(action, argparse._AppendAction):
        return [f"{flag}={text}" for text in texts]
    if action is not None and action.nargs is None:  # as --custom_class_order takes them
        return [f"{flag}={','.join(texts)}"]
    return [flag, *texts]


def _is_several(value: Any) -> bool:
    if isinstance(value, str | bytes | Mapping) or getattr(value, "shape", None) == ():
        return False  # a 0-d array only looks iterable
    return isinstance(value, Iterable)


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):  # numpy's, too
        return str(bool(value))  # not 1 or 0, which a flag that takes numbers would take for one
    if callable(value) or isinstance(value, Mapping):
        raise UsageError(f"{name}: {value!r} is no value of a flag; give a number, a text, a boolean or a list of them")
    return str(value)


# -- a model that is given as a class ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class GivenClass(Registered):
    """Its runs are those of its source, as it is now: a cell that was edited makes another run."""

    checksum: str

    @property
    def sha256(self) -> str:
        return self.checksum

    @property
    def place(self) -> str:
        return f"the class {self.symbol}"

    @property
    def presets(self) -> str:
        """The nearest method of the project that it derives from: the two then differ in their code alone."""
        ours = [base for base in self.value.__mro__[1:] if not is_users(base.__module__) and "NAME" in vars(base)]
        return normalise(vars(ours[0])["NAME"]) if ours else self.name


def name_of(cls: type) -> str:
    """What `--model` is for a class."""
    if not any(base.__name__ == BASE for base in cls.__mro__[1:]):
        raise UsageError(f"model: {cls.__name__} is no method; derive it from {BASE}, or from a method such as Er")
    for attribute in ("NAME", "COMPATIBILITY"):
        if not getattr(cls, attribute, None):
            raise UsageError(f"model: {cls.__name__} has no {attribute}; docs/extending.md shows what a method needs")
    # One that only inherits its name is not what that name means.
    return normalise(str(vars(cls).get("NAME") or cls.__name__))


def entry_of(cls: type) -> Entry | None:
    """What that name means; None for a class of the project's, which its name is enough for."""
    if not is_users(cls.__module__):
        return None
    file = Path(getattr(sys.modules[cls.__module__], "__file__", None) or cls.__module__)
    summary = (cls.__doc__ or "").partition("\n")[0]
    return GivenClass(name_of(cls), file, cls.__name__, summary, "", cls, fingerprint(cls))
