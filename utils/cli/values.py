"""argparse types: what values a flag takes, and the error for any other."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from utils.errors import nearest

_TRUE = {"1", "true", "t", "y", "yes"}
_FALSE = {"0", "false", "f", "n", "no"}


def binary_to_boolean_type(value: str | bool | int) -> bool:
    """argparse type of Mammoth's boolean flags, which take a value: `--permute_classes 1`."""
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise argparse.ArgumentTypeError(f"{value!r} is not a boolean; use 1 or 0 (or true/false, yes/no, y/n, t/f)")


binary_to_boolean_type.metavar = "{0,1}"  # type: ignore[attr-defined]  # shown in the help


def number(
    kind: type,
    low: float | None = None,
    high: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
) -> Callable[[Any], Any]:
    """argparse type: a finite `int` or `float` in [low, high], or strictly above / below a bound."""

    def convert(text: Any) -> Any:
        try:
            value = kind(str(text))
        except ValueError:
            word = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {word}") from None
        bounds = [
            (kind is not int or abs(value) < 2**63, f"less than {2**63}"),
            (low is None or value >= (low or 0), f"at least {low}"),
            (high is None or value <= (high or 0), f"at most {high}"),
            (above is None or value > (above or 0), f"greater than {above}"),
            (below is None or value < (below or 0), f"less than {below}"),
            (abs(value) != float("inf") and value == value, "finite"),
        ]
        for holds, words in bounds:
            if not holds:
                raise argparse.ArgumentTypeError(f"{text} is out of range: it must be {words}")
        return value

    convert.metavar = kind.__name__.upper()  # type: ignore[attr-defined]
    return convert


def choice(*names: str, lacking: Mapping[str, str] = MappingProxyType({})) -> Callable[[Any], str]:
    """argparse type: one of some names, with the nearest one in the error; `lacking` has reasons why others are not."""

    def convert(text: Any) -> str:
        if str(text) in lacking:
            raise argparse.ArgumentTypeError(f"{text} is not possible: {lacking[str(text)]}")
        if str(text) not in names:
            raise argparse.ArgumentTypeError(f"unknown value {str(text)!r}{nearest(str(text), names)}")
        return str(text)

    convert.metavar = "{" + ",".join(names) + "}"  # type: ignore[attr-defined]
    return convert


def class_order(text: Any) -> list[int]:
    """argparse type of `--custom_class_order`: whole numbers separated by commas or dashes."""
    items = text if isinstance(text, list) else str(text).replace("-", ",").split(",")
    return [number(int, 0)(item) for item in items]


def schedule(text: Any) -> str | None:
    """argparse type of `--lr_scheduler`; `none` is Python's, as models written for Mammoth expect."""
    return None if str(text).lower() == "none" else choice("multisteplr", "cosine", "linear", "none")(text)


schedule.metavar = "{multisteplr,cosine,linear,none}"  # type: ignore[attr-defined]
schedule.word_for_none = "none"  # type: ignore[attr-defined]  # shown as the default


def milestone(text: Any) -> int | float:
    """argparse type of `--lr_milestones`: a whole number, or a share of a task's length, between 0 and 1."""
    value = number(float, above=0)(text)
    return value if value < 1 else number(int, 1)(text)
