"""Defaults of flags from YAML files, classes and earlier runs, each put through the flag's own type."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from utils.cli.config import FRAMEWORK
from utils.cli.flags import DERIVED
from utils.cli.parser import ArgumentParser
from utils.cli.roles import Declared, Role
from utils.cli.values import class_order
from utils.errors import UsageError, nearest


class Layer(NamedTuple):
    """Defaults from one source; later layers win."""

    source: str
    values: dict[str, Any]
    strict: bool = True  # an unknown key is an error
    owner: str = FRAMEWORK  # whose names the keys are
    recorded: bool = False  # by another run, under the names of its command line
    set_by_model: bool = False  # in its source, where nothing checks a value


class Refused:
    """A default that its flag does not take: an error only if nothing overrides it."""

    def __init__(self, value: Any, reason: str):
        self.value, self.reason = value, reason

    def __str__(self) -> str:
        return str(self.value)


def apply(parser: ArgumentParser, layer: Layer) -> None:
    """Make a layer's values the defaults of their flags; whatever gives a value lifts `required`."""
    actions = parser.actions_by_dest()
    for key, value in layer.values.items():
        declared = parser.declared.get(key, Declared())
        if not declared.layered:
            continue
        # Written by Mammoth, or of no use to the run that starts from the file.
        if not layer.strict and (declared.role is Role.FIXED or key in DERIVED or not declared.role.handed_on):
            continue
        if key not in actions and (not layer.strict or parser.get_default(key) is not None):
            continue
        if key not in actions:
            raise UsageError(f"{layer.source}: unknown key {key!r}{nearest(str(key), actions)}")
        action = actions[key]
        try:
            action.default = _coerce(action, value)
        except (argparse.ArgumentTypeError, ValueError, TypeError) as error:
            action.default = Refused(value, f"{layer.source}: {key}: {error}")
        if value is not None:
            action.required = False


def accept(parser: ArgumentParser, defaults: Mapping[str, Any]) -> None:
    """Let flags take the values that a model sets by `set_defaults`: to it, `lr=0` means that it sees to the rate."""
    actions = parser.actions_by_dest()
    for key, value in defaults.items():
        if key in actions:
            try:
                _coerce(actions[key], value)
            except (argparse.ArgumentTypeError, ValueError, TypeError):
                actions[key].type = _or_else(value, actions[key].type)


def _or_else(value: Any, convert: Any) -> Callable[[Any], Any]:
    """The type of a flag that takes one more value."""

    def convert_(text: Any) -> Any:
        with contextlib.suppress(TypeError, ValueError):
            if text == value or type(value)(text) == value:
                return value
        return convert(text) if callable(convert) else text

    return convert_


def refuse(parser: ArgumentParser, argv: list[str]) -> None:
    """Report a default that no flag takes and that the command line does not override."""
    given = {token.partition("=")[0] for token in argv}
    for action in parser.actions_by_dest().values():
        if isinstance(action.default, Refused) and given.isdisjoint(action.option_strings):
            raise UsageError(action.default.reason)


def forget_first(parser: ArgumentParser, argv: list[str]) -> None:
    """`--n_epochs 5` is for all tasks, whatever a YAML says about the first; likewise `--lr_milestones`."""
    given, actions = {token.partition("=")[0] for token in argv}, parser.actions_by_dest()
    for flag in ("n_epochs", "lr_milestones"):
        if parser.moved.get(f"--{flag}", f"--{flag}") in given:
            actions[parser.renamed.get(f"{flag}_first", f"{flag}_first")].default = None


def _coerce(action: argparse.Action, value: Any) -> Any:
    """A YAML value passed through the flag's own type, element by element for lists."""
    if value is None:
        return None
    if isinstance(value, list) != (action.nargs in ("*", "+")) and action.type is not class_order:
        raise ValueError(
            f"{value!r} is {'a list' if isinstance(value, list) else 'no list'}, which the flag doesn't take"
        )
    convert = action.type if callable(action.type) else str
    converted = [convert(item) for item in value] if action.nargs in ("*", "+") else convert(value)
    if action.choices is not None and converted not in action.choices:
        raise ValueError(f"{value!r} is none of {', '.join(map(str, action.choices))}")
    return converted
