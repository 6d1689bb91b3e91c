"""Small helpers shared by all parts. Imports nothing heavy: `--help` goes through here."""

from __future__ import annotations

from typing import Any

from utils.cli.values import binary_to_boolean_type
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
# Modules that only files written for Mammoth import, as `utils.mixup`; a file of that name in this folder goes first.
__path__.append(f"{__path__[0]}/mammoth/surface")


def __getattr__(name: str) -> Any:
    """`from utils import to_parsable_obj`: loaded when asked for, because it needs torch."""
    if name == "to_parsable_obj":
        from utils.checkpoints import to_parsable_obj

        return to_parsable_obj
    raise AttributeError(f"module 'utils' has no attribute {name!r}")
