"""A model that is given as a class, from Python, instead of by a name that a file has."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from utils.cli.fingerprint import fingerprint, is_users
from utils.cli.registry import Entry, normalise
from utils.errors import UsageError

BASE = "ContinualModel"


@dataclass(frozen=True)
class GivenClass(Entry):
    """Its runs are those of its source, as it is now: a cell that was edited makes another run."""

    given: type
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
        ours = [base for base in self.given.__mro__[1:] if not is_users(base.__module__) and "NAME" in vars(base)]
        return normalise(vars(ours[0])["NAME"]) if ours else self.name

    def load(self) -> type:
        return self.given


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
