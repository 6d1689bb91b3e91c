"""Defaults of flags from YAML files, classes and earlier runs, each put through the flag's own type."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

from utils.cli.flags import role
from utils.cli.parser import ArgumentParser
from utils.cli.roles import Declared, Role
from utils.errors import UsageError, nearest


class Layer(NamedTuple):
    """Defaults from one source; later layers win."""

    source: str
    values: dict[str, Any]
    strict: bool = True  # an unknown key is an error


def apply(parser: ArgumentParser, layer: Layer) -> None:
    """Make a layer's values the defaults of their flags; whatever gives a value lifts `required`."""
    actions = parser.actions_by_dest()
    for key, value in layer.values.items():
        if not parser.declared.get(key, Declared()).layered:
            continue
        if not layer.strict and role(key) in (Role.FIXED, Role.DERIVED):  # written by Mammoth
            continue
        if key not in actions and (not layer.strict or parser.get_default(key) is not None):
            continue
        if key not in actions:
            raise UsageError(f"{layer.source}: unknown key {key!r}{nearest(str(key), actions)}")
        action = actions[key]
        try:
            action.default = _coerce(action, value)
        except (argparse.ArgumentTypeError, ValueError, TypeError) as error:
            raise UsageError(f"{layer.source}: {key}: {error}") from None
        if value is not None:
            action.required = False


def forget_first(parser: ArgumentParser, argv: list[str]) -> None:
    """`--n_epochs 5` is for all tasks, whatever a YAML says about the first; likewise `--lr_milestones`."""
    given, actions = {token.partition("=")[0] for token in argv}, parser.actions_by_dest()
    for flag in ("n_epochs", "lr_milestones"):
        if f"--{flag}" in given:
            actions[f"{flag}_first"].default = None


def _coerce(action: argparse.Action, value: Any) -> Any:
    """A YAML value passed through the flag's own type, element by element for lists."""
    if value is None:
        return None
    if isinstance(value, list) != (action.nargs in ("*", "+")) and action.dest != "custom_class_order":
        raise ValueError(
            f"{value!r} is {'a list' if isinstance(value, list) else 'no list'}, which the flag doesn't take"
        )
    convert = action.type if callable(action.type) else str
    converted = [convert(item) for item in value] if action.nargs in ("*", "+") else convert(value)
    if action.choices is not None and converted not in action.choices:
        raise ValueError(f"{value!r} is none of {', '.join(map(str, action.choices))}")
    return converted
