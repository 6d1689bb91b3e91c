"""What a base method replays: noted while it calls its buffer, for Dynamic Gradient Calibration to take again."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from torch import Tensor

try:  # in this project, an error shown as one line
    from utils.errors import UsageError
except ImportError:  # in Mammoth
    UsageError = ValueError  # type: ignore[misc, assignment]


@dataclass
class Draw:
    """A replay batch that the base got: images as they came, and how to read them un-augmented."""

    images: Tensor
    labels: Tensor | None
    stored: Callable[[], tuple[Tensor, Tensor]]

    def __len__(self) -> int:
        return self.images.shape[0]


def images_and_labels(fields: tuple[Any, ...]) -> tuple[Tensor, Tensor | None]:
    """In what a buffer hands out: there may be an index or other images before them, and other fields after them."""
    tensors = [field for field in fields if isinstance(field, Tensor)]
    for images, labels in pairwise(tensors):
        if images.dim() > 1 and labels.dim() == 1 and not labels.is_floating_point():
            return images, labels
    return next(field for field in tensors if field.dim() > 1), None


class Recorder:
    """While it is entered, tells `drawn` the rows, if they are known, and the fields of each `get_data` of a buffer.

    `hold_back` is asked before each `add_data`, with the names of the fields; if it says yes, nothing is stored.
    """

    def __init__(
        self, buffer: Any, drawn: Callable[[Tensor | None, Any], None], hold_back: Callable[[list[str]], bool] | None
    ):
        self.buffer, self.drawn, self.hold_back = buffer, drawn, hold_back
        self.get_data, self.add_data = buffer.get_data, buffer.add_data

    def __enter__(self) -> None:
        self.buffer.get_data = self._get_data
        if self.hold_back is not None:
            self.buffer.add_data = self._add_data

    def __exit__(self, *_: object) -> None:
        for name in ("get_data", "add_data"):
            vars(self.buffer).pop(name, None)  # the class's own methods show again

    def _get_data(self, *args: Any, **kwargs: Any) -> Any:
        index, fields = _with_index(self.get_data, args, kwargs)
        self.drawn(index, fields)
        return fields

    def _add_data(self, *args: Any, **kwargs: Any) -> Any:
        fields = inspect.signature(self.add_data).bind(*args, **kwargs).arguments
        if self.hold_back(sorted(name for name, value in fields.items() if value is not None)):  # type: ignore[misc]
            return None
        return self.add_data(*args, **kwargs)


@lru_cache
def _place_of_index(function: Callable) -> int | None:
    """How many arguments come before `return_index`, where it is given without its name; None if there is none."""
    parameters = inspect.signature(function).parameters
    if "return_index" not in parameters:
        return None
    by_place = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    return by_place.index("return_index") - 1 if "return_index" in by_place else sys.maxsize


def _with_index(get_data: Callable, args: Any, kwargs: Any) -> tuple[Tensor | None, Any]:
    """What a buffer hands out, and the rows that it drew, if its `get_data` can tell them."""
    function = getattr(get_data, "__func__", None)
    place = None if function is None else _place_of_index(function)
    if place is None:
        return None, get_data(*args, **kwargs)
    if len(args) > place:
        wanted, args = args[place], (*args[:place], True, *args[place + 1 :])
    else:
        wanted, kwargs = kwargs.get("return_index", False), {**kwargs, "return_index": True}
    fields = get_data(*args, **kwargs)
    if not _is_index(fields[0]):
        raise UsageError(f"{get_data.__qualname__} takes return_index, but does not begin with an index of rows")
    return fields[0], fields if wanted else tuple(fields[1:])


def _is_index(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 1 and not value.is_floating_point()
