"""Small helpers shared by all parts. Imports nothing heavy: `--help` goes through here."""

from __future__ import annotations

import argparse
from typing import Any

from utils.mammoth.helpers import (
    create_if_not_exists,
    custom_str_underscore,
    disable_logging,
    field_with_aliases,
    in_notebook,
    none_or_float,
    random_id,
    setup_logging,
    smart_joint,
)

__all__ = [
    "__version__",
    "binary_to_boolean_type",
    "create_if_not_exists",
    "custom_str_underscore",
    "disable_logging",
    "field_with_aliases",
    "in_notebook",
    "none_or_float",
    "random_id",
    "setup_logging",
    "smart_joint",
]
__version__ = "0.1.0"

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


def __getattr__(name: str) -> Any:
    """`from utils import to_parsable_obj`: loaded when asked for, because it needs torch."""
    if name == "to_parsable_obj":
        from utils.checkpoints import to_parsable_obj

        return to_parsable_obj
    raise AttributeError(f"module 'utils' has no attribute {name!r}")
