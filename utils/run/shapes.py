"""Checking what was read from a JSON file: the first place that differs from the expected shape is named.

A shape is a type, a list of one shape, a mapping of names to shapes, or one of these with None in a tuple for what may
be null. A name that ends in `?` may be missing, and the shape of `*` is that of all values.
"""

from __future__ import annotations

from reprlib import repr as shortened
from typing import Any

NUMBER, NUMBERS = (float, None), [(float, None)]
TEXT = (str, None)
HUGE = 1e100  # infinity and NaN are refused, too, and sums and squares must be possible
WORDS = {str: "text", int: "a whole number", float: "a number", list: "a list", dict: "a mapping"}


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
