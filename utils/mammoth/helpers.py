"""Small helpers that models written for Mammoth import from `utils`. Nothing heavy: `--help` goes through here."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import string
import sys
from collections.abc import Callable, Iterator, Mapping


def none_or_float(value: str | float | None) -> float | None:
    """argparse type: a number, or `None`."""
    return None if value is None or str(value).strip().lower() == "none" else float(value)


def custom_str_underscore(value: str) -> str:
    """argparse type of names, in which `_` and `-` are the same."""
    return str(value).replace("_", "-").strip()


def field_with_aliases(choices: Mapping[str, list[str]]) -> Callable[[str], str]:
    """argparse type: one of some names, each of which may also be called otherwise."""

    def convert(value: str) -> str:
        for name, aliases in choices.items():
            if value in (name, *aliases):
                return name
        raise argparse.ArgumentTypeError(f"{value!r} is none of {', '.join(choices)}")

    return convert


def create_if_not_exists(path: str) -> None:
    os.makedirs(path, exist_ok=True)


def smart_joint(*paths: str) -> str:
    """A path with forward slashes, on every system."""
    return os.path.join(*paths).replace("\\", "/")


def random_id(length: int = 8) -> str:
    """Letters and digits at random; not from the generators that training draws from."""
    return "".join(random.SystemRandom().choices(string.ascii_letters + string.digits, k=length))


@contextlib.contextmanager
def disable_logging(max_disabled_level: int = logging.CRITICAL) -> Iterator[None]:
    """No messages up to a level."""
    before = logging.root.manager.disable
    logging.disable(max_disabled_level)
    try:
        yield
    finally:
        logging.disable(before)


def setup_logging() -> None:
    """Messages from the level on that the environment's LOG_LEVEL names (INFO), to the error stream."""
    level = logging.getLevelName(os.environ.get("LOG_LEVEL", "INFO").upper())
    level = level if isinstance(level, int) else logging.INFO
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s", stream=sys.stderr)


def under_test() -> bool:
    """Whether Mammoth's own tests are running: they repeat commands, and read results from the error stream."""
    return os.environ.get("MAMMOTH_TEST") == "1"


def in_notebook() -> bool:
    return "ipykernel" in sys.modules
