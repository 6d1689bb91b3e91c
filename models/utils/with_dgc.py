"""`--dgc 1`: Dynamic Gradient Calibration on top of a replay method from elsewhere."""

from __future__ import annotations

from functools import cache
from typing import Any

from models.utils.dgc_mixin import DgcMixin
from utils.buffer import Buffer
from utils.errors import UsageError
from utils.registry import ROOT, Entry


def with_dgc(entry: Entry, cls: Any) -> type:
    """`class DgcX(DgcMixin, X)`, unless we have such a class, made with knowledge of the method."""
    if issubclass(cls, DgcMixin):
        raise UsageError(f"--dgc 1: {entry.name} is with DGC already; leave the flag out")
    if entry.module and (ROOT / "models" / f"dgc_{entry.file.stem}.py").exists():
        raise UsageError(f"--dgc 1: {entry.name} has a DGC of its own; use --model dgc_{entry.file.stem}")
    return _combine(cls)


@cache
def _combine(cls: Any) -> type:
    class Combined(_NeedsBuffer, DgcMixin, cls):
        NAME = f"dgc_{cls.NAME}"
        COMPATIBILITY = cls.COMPATIBILITY

    Combined.__name__ = Combined.__qualname__ = f"Dgc{cls.__name__}"
    Combined.__module__ = cls.__module__
    return Combined


class _NeedsBuffer:
    """DGC must see which rows are replayed, and read them again."""

    buffer: Any
    NAME: str

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if not isinstance(getattr(self, "buffer", None), Buffer):
            kind = type(getattr(self, "buffer", None))
            raise UsageError(
                f"--dgc 1: {self.NAME} would need a utils.buffer.Buffer in self.buffer, which is a "
                f"{kind.__module__}.{kind.__name__}"
            )
