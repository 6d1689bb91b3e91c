"""Networks. `get_backbone(args)` builds a fresh one from `args.backbone` and its flags."""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import utils.cli.registry as registry
from utils.cli.config import BACKBONE, selected, view

BACKBONES = registry.Kind("backbone", "backbone")
# The parameters of a registered network become flags (`--num_filters`).
REGISTERED_BACKBONES, register_backbone = BACKBONES.registered, BACKBONES.register


def get_backbone_names() -> list[str]:
    return list(registry.scan(BACKBONES))


# Parameters of a backbone that follow from the dataset; all others become flags.
FROM_DATASET = ("num_classes", "in_channels", "input_size")


def get_backbone_class(name: str, return_args: bool = False, plugins: Sequence[str] = ()) -> Any:
    """The class or factory registered under a name; with `return_args`, also its parameters by name."""
    factory: Any = registry.find(BACKBONES, name, plugins).load()
    return (factory, parameters(factory)) if return_args else factory


def parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """By name, without `*args` and `**kwargs`."""
    found = inspect.signature(factory, eval_str=True).parameters
    return {n: p for n, p in found.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def get_backbone(args: Namespace) -> Any:
    """A fresh network on the CPU; its arguments are read from `args` by name."""
    factory: Any = selected(args, BACKBONES).load()
    own = view(args, BACKBONE)
    return factory(**{name: getattr(own, name) for name in parameters(factory)})


def __getattr__(name: str) -> Any:
    """`from backbone import MammothBackbone`: loaded when asked for, because a listing of names needs no torch."""
    if name in ("MammothBackbone", "ReturnTypes", "num_flat_features", "xavier"):
        from backbone import mammoth_backbone

        return getattr(mammoth_backbone, name)
    raise AttributeError(f"module 'backbone' has no attribute {name!r}")
