"""The parsed command line: flags that a model may write to, and what parsing settled, which it may not."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from utils.cli import registry
from utils.cli.flags import declared
from utils.cli.roles import Declared


@dataclass(frozen=True)
class Names:
    """What flags are called on a command line on which several owners have one of the same name."""

    of: Mapping[str, Mapping[str, str]]  # owner → its name of a flag → the name under which the flags hold it
    declared: Mapping[str, Declared]  # by the latter: roles of the framework's own


class Config(Namespace):
    """`vars(config)` holds the flags alone; some of Mammoth's models write to them."""

    __slots__ = ("_names", "_recorded", "_selection")
    _recorded: str  # the flags as they were parsed, see `utils.run.identity.record`
    _selection: Mapping[str, registry.Entry]  # by kind: where the model, the dataset and the backbone are defined
    _names: Names | None  # None: each flag has one owner

    def __init__(self) -> None:
        super().__init__()
        self._selection, self._names = {}, None


class View(Config):
    """The flags as one owner calls them; what is written through one view, all others see."""

    __slots__ = ("_own",)
    _own: Mapping[str, str]

    def __init__(self, config: Config, names: Names, owner: str):
        self._selection, self._names, self._own = config._selection, names, names.of[owner]
        object.__setattr__(self, "__dict__", vars(config))

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_"):
            return object.__getattribute__(self, name)
        return object.__getattribute__(self, self._own.get(name, name))

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name if name.startswith("_") else self._own.get(name, name), value)


FRAMEWORK, MODEL, DATASET, BACKBONE = "framework", "model", "dataset", "backbone"


def view(args: Namespace, owner: str, names: Names | None = None) -> Any:
    """The flags in which a name means what it does to the framework, the model, the dataset or the backbone."""
    names = names or getattr(args, "_names", None)
    return args if names is None or not isinstance(args, Config) else View(args, names, owner)


def declared_in(args: Namespace, name: str) -> Declared:
    """What is said about a flag in `vars(args)`."""
    names = getattr(args, "_names", None)
    return declared(name) if names is None else names.declared.get(name, Declared())


def select(config: Config, kind: registry.Kind, found: registry.Entry) -> None:
    config._selection = {**config._selection, kind.name: found}
    setattr(config, kind.name, found.name)


def carry_selection(chosen: Config, config: Config) -> None:
    config._selection = chosen._selection
    config.model, config.dataset, config.backbone = chosen.model, chosen.dataset, chosen.backbone


def is_selected(config: Config, kind: registry.Kind) -> bool:
    return kind.name in config._selection


def selected(args: Namespace, kind: registry.Kind) -> registry.Entry:
    """The definition of `args.model`, `args.dataset` or `args.backbone`: as parsing found it, else by a search."""
    args = view(args, FRAMEWORK)
    name = getattr(args, kind.name)
    found = getattr(args, "_selection", {}).get(kind.name)
    if found is None or found.name != registry.normalise(name):
        found = registry.find(kind, name, getattr(args, "plugin", ()))
    return found
