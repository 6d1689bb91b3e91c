"""`run(model=…, lr=0.1, …)` as the command line that means the same."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from utils.cli.flags import framework_parser
from utils.cli.given_class import entry_of, name_of
from utils.cli.parser import ArgumentParser
from utils.cli.registry import Entry
from utils.errors import UsageError

SEED = 0  # without one every call would be another run, and none could be found again or resumed


def command_line(model: Any, flags: Mapping[str, Any]) -> tuple[list[str], Entry | None]:
    """Tokens as a shell would pass them, and what `--model` means if it is a class."""
    name, entry = model, None
    if isinstance(model, type):
        name, entry = name_of(model), entry_of(model)
    elif not isinstance(model, str | None):
        raise UsageError(f"model: {model!r} is neither a name nor a class; `python main.py --list` shows all names")
    given = {"model": name, **flags}
    if given.get("resume") is None:
        given.setdefault("seed", SEED)
    parser = framework_parser()
    return [token for name, value in given.items() for token in tokens(parser, name, value)], entry


def tokens(parser: ArgumentParser, name: str, value: Any) -> list[str]:
    """`None` is a flag that is not given."""
    flag, action = f"--{name}", parser.actions_by_dest().get(name)
    if value is None:
        return []
    if action is not None and action.nargs == 0:
        raise UsageError(f"{name} is for the command line: python main.py {flag}")
    if not _is_several(value):
        return [f"{flag}={_text(name, value)}"]
    texts = [_text(name, item) for item in value]
    if isinstance(action, argparse._AppendAction):
        return [f"{flag}={text}" for text in texts]
    if action is not None and action.nargs is None:  # as --custom_class_order takes them
        return [f"{flag}={','.join(texts)}"]
    return [flag, *texts]


def _is_several(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) and _shape(value) != ()


def _shape(value: Any) -> Any:
    """() of a number in an array of none dimensions, which is iterable by its type alone."""
    return getattr(value, "shape", None)


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):  # numpy's, too
        return str(int(value))
    if callable(value) or isinstance(value, Mapping):
        raise UsageError(f"{name}: {value!r} is no value of a flag; give a number, a text, a boolean or a list of them")
    return str(value)
