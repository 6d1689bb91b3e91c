"""`--dgc 1`: Dynamic Gradient Calibration on top of a replay method from elsewhere."""

from __future__ import annotations

from functools import cache
from typing import Any

from models.utils.dgc_mixin import DgcMixin
from utils.buffer import Buffer
from utils.cli.registry import ROOT, Entry
from utils.errors import UsageError

# Built-in methods that DGC does not fit, and why. A user's own files, in models/ or as plugins, are not among them.
UNFIT = {
    "models.agem": "projects by the gradient of stored images, which are not in its loss",
    "models.agem_r": "projects by the gradient of stored images, which are not in its loss",
    "models.gcr": "weighs its replayed images one by one",
    "models.gss": "chooses at every step what it stores, so its buffer can't wait for the end of a task",
    "models.hal": "looks one step ahead with a gradient that DGC would not correct",
    "models.icarl": "draws no replay batch: its exemplars are in the training set",
    "models.moca": "perturbs the features of its replayed images",
    "models.ssvrg": "corrects the gradients of its replay batches itself",
}


def with_dgc(entry: Entry, cls: Any) -> type:
    """`class DgcX(DgcMixin, X)`, unless we have such a class, made with knowledge of the method."""
    if issubclass(cls, DgcMixin):
        raise UsageError(f"--dgc 1: {entry.name} is with DGC already; leave the flag out")
    if entry.module and (ROOT / "models" / f"dgc_{entry.file.stem}.py").exists():
        raise UsageError(f"--dgc 1: {entry.name} has a DGC of its own; use --model dgc_{entry.file.stem}")
    if entry.module in UNFIT:
        raise UsageError(
            f"--dgc 1: {entry.name} {UNFIT[entry.module]}; DGC is defined here for er, derpp, xder and dynamic_er: "
            "use --model dgc_er, dgc_derpp, dgc_xder or dgc_dynamic_er"
        )
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
