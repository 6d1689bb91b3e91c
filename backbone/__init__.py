"""Networks. `get_backbone(args)` builds a fresh one from `args.backbone` and its flags."""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import utils.registry as registry

# Filled by the decorator when a module is imported; names of files not yet imported come from `registry.scan`.
REGISTERED_BACKBONES: dict[str, Callable[..., Any]] = {}


def register_backbone(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator for a network class or factory; its parameters become flags (`--num_filters`)."""

    def register(factory: Callable[..., Any]) -> Callable[..., Any]:
        REGISTERED_BACKBONES[registry.normalise(name)] = factory
        return factory

    return register


def get_backbone_entries() -> dict[str, registry.Entry]:
    return registry.scan("backbone", "register_backbone")


def get_backbone_names() -> list[str]:
    return list(get_backbone_entries())


# Parameters of a backbone that follow from the dataset; all others become flags.
FROM_DATASET = ("num_classes", "in_channels", "input_size")


def get_backbone_class(name: str) -> Callable[..., Any]:
    """The class or factory registered under a name; imports its module."""
    factory: Any = registry.find("backbone", name, get_backbone_entries()).load()
    return factory


def get_backbone_parameters(name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(get_backbone_class(name), eval_str=True).parameters)


def get_backbone(args: Namespace) -> Any:
    """A fresh network on the CPU; its arguments are read from `args` by name."""
    parameters = get_backbone_parameters(args.backbone)
    return get_backbone_class(args.backbone)(**{name: getattr(args, name) for name in parameters})


def __getattr__(name: str) -> Any:
    """`from backbone import MammothBackbone`: loaded when asked for, because a listing of names needs no torch."""
    if name in ("MammothBackbone", "ReturnTypes", "num_flat_features", "xavier"):
        from backbone import mammoth_backbone

        return getattr(mammoth_backbone, name)
    raise AttributeError(f"module 'backbone' has no attribute {name!r}")
