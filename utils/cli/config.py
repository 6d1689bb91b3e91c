"""The parsed command line: flags that a model may write to, and what parsing settled, which it may not."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, replace

from utils.cli import registry


@dataclass(frozen=True)
class Selection:
    """Where the model, the dataset and the backbone of a command are defined."""

    model: registry.Entry | None = None
    dataset: registry.Entry | None = None
    backbone: registry.Entry | None = None


class Config(Namespace):
    """`vars(config)` holds the flags alone; some of Mammoth's models write to them."""

    __slots__ = ("_recorded", "_selection")
    _recorded: str  # the flags as they were parsed, see `utils.run.identity.record`
    _selection: Selection

    def __init__(self) -> None:
        super().__init__()
        self._selection = Selection()


def select(config: Config, kind: registry.Kind, found: registry.Entry) -> None:
    config._selection = replace(config._selection, **{kind.name: found})
    setattr(config, kind.name, found.name)


def carry_selection(chosen: Config, config: Config) -> None:
    config._selection = chosen._selection
    config.model, config.dataset, config.backbone = chosen.model, chosen.dataset, chosen.backbone


def is_selected(config: Config, kind: registry.Kind) -> bool:
    return getattr(config._selection, kind.name) is not None


def selected(args: Namespace, kind: registry.Kind) -> registry.Entry:
    """The definition of `args.model`, `args.dataset` or `args.backbone`: as parsing found it, else by a search."""
    name = getattr(args, kind.name)
    found = getattr(getattr(args, "_selection", None), kind.name, None)
    if found is None or found.name != registry.normalise(name):
        found = registry.find(kind, name, getattr(args, "plugin", ()))
    return found
