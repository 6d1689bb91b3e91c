"""What files of ours must look like to be read; said of the first place that differs.

A shape is a type, a list of one shape, a mapping of names to shapes, or one of these with None in a tuple for what may
be null. A name that ends in `?` may be missing, and the shape of `*` is that of all values.
"""

from __future__ import annotations

from reprlib import repr as shortened
from typing import Any

NUMBER, NUMBERS = (float, None), [(float, None)]
TEXT = (str, None)
HUGE = 1e100  # infinity and NaN are none of ours either, and sums and squares must be possible
WORDS = {str: "text", int: "a whole number", float: "a number", list: "a list", dict: "a mapping"}
ACCURACIES = {f"{name}?": NUMBER for name in ("FAIA", "FAA", "FF", "BWT", "FWT")}
ENVIRONMENT = {f"{name}?": TEXT for name in ("platform", "cpu", "gpu", "git_commit")}
TIMING = {"finished": TEXT, "train_seconds": NUMBER, "train_seconds_by_task": [float]}
SUMMARY = {
    "seed": int,
    "class_il": ACCURACIES,
    "task_il": ACCURACIES,
    "n_tasks?": int,
    "parameters?": int,
    "stored_bytes?": int,
    "test?": ({"class_il": [float], "task_il": [float]}, None),
}


def check_shape(value: Any, shape: Any, place: str = "") -> None:
    """ValueError with the first place that differs."""
    if isinstance(shape, tuple):
        if value is None:
            return
        shape = shape[0]
    kind = shape if isinstance(shape, type) else type(shape)
    right = isinstance(value, int | float if kind is float else kind) and not isinstance(value, bool)
    if not right or (kind in (int, float) and not abs(value) < HUGE):
        raise ValueError(f"{place or 'the content'} is {shortened(value)}, not {WORDS[kind]}")
    if isinstance(shape, list):
        for i, element in enumerate(value):
            check_shape(element, shape[0], f"{place}[{i}]")
    elif isinstance(shape, dict):
        _check_names(value, shape, place)


def _check_names(value: dict[str, Any], shape: dict[str, Any], place: str) -> None:
    for pattern, of_name in shape.items():
        name = pattern.removesuffix("?")
        if pattern == "*":
            for any_name, element in value.items():
                check_shape(element, of_name, f"{place}[{shortened(any_name)}]")
        elif name in value:
            check_shape(value[name], of_name, f"{place}.{name}".lstrip("."))
        elif pattern == name:
            raise ValueError(f"{place or 'the content'} has no {name}")
