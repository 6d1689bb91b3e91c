"""Continual-learning methods, one per file. `get_model(...)` builds the one that `args.model` names."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import utils.cli.registry as registry
from utils.cli.yaml_io import read_yaml
from utils.errors import UsageError, UserError

if TYPE_CHECKING:
    from models.utils.continual_model import ContinualModel

REGISTERED_MODELS: dict[str, type] = {}


def register_model(name: str) -> Callable[[type], type]:
    """Decorator that registers a model class under a name (a class attribute `NAME` does the same)."""

    def register(cls: type) -> type:
        REGISTERED_MODELS[registry.normalise(name)] = cls
        return cls

    return register


MODELS = registry.Kind("model", "models", "register_model", "ContinualModel", REGISTERED_MODELS)


def get_model_entries(plugins: Sequence[str] = ()) -> dict[str, registry.Entry]:
    return registry.scan(MODELS, plugins)


def get_model_names() -> dict[str, Any]:
    """Name → class, or the error of a file that cannot be imported. Imports every model."""
    names: dict[str, Any] = {}
    for name, entry in get_model_entries().items():
        try:
            names[name] = entry.load()
        except UserError as error:
            names[name] = error
    return names


def get_model_class(args: Namespace) -> type[ContinualModel]:
    """The class of `args.model`; with `--dgc 1` a class made of it and DGC."""
    entry = registry.find(MODELS, args.model, getattr(args, "plugin", ()))
    cls: Any = entry.load()
    if getattr(args, "dgc", False):
        from models.utils.with_dgc import with_dgc

        return with_dgc(entry, cls)
    return cls


def get_model(args: Namespace, backbone: Any, loss: Any, transform: Any, dataset: Any) -> ContinualModel:
    return get_model_class(args)(backbone, loss, args, transform, dataset)


def read_model_config(model: str, section: str, dataset: str, buffer_size: int | None) -> tuple[dict[str, Any], str]:
    """(flag defaults, file) of `models/config/<model>.yaml`.

    The section `default` always applies; `best` adds the dataset's section and, in it, the buffer size's, which wins.
    """
    path = _config_file(model)
    if path is None:
        if section == "best":
            raise UsageError(f"--model_config best: there is no models/config/{model}.yaml with presets for {model}")
        return {}, ""
    content = read_yaml(path)
    if "like" in content:  # the presets of another model
        return read_model_config(str(content["like"]), section, dataset, buffer_size)
    content = {registry.normalise(str(key)): value or {} for key, value in content.items()}
    for name, values in content.items():
        if not isinstance(values, dict):
            raise UsageError(f"{path}: section {name!r} must hold `flag: value` lines, not {values!r}")
    defaults = dict(content.get("default", {}))
    if section == "best":
        defaults.update(_best(content, registry.normalise(dataset), buffer_size, path))
    return defaults, str(path)


def _config_file(model: str) -> Path | None:
    files = (registry.ROOT / "models" / "config").glob("*.yaml")
    return next((path for path in files if registry.normalise(path.stem) == registry.normalise(model)), None)


def _best(content: dict[str, Any], dataset: str, buffer_size: int | None, path: Path) -> dict[str, Any]:
    if dataset not in content:
        known = ", ".join(name for name in content if name != "default") or "none"
        raise UsageError(f"--model_config best: {path} has no presets for {dataset}; it has {known}")
    section = content[dataset]
    sizes = [key for key in section if isinstance(key, int)]
    if sizes and buffer_size not in sizes:
        raise UsageError(
            f"--model_config best: {path} has no presets for {dataset} with buffer_size {buffer_size}; "
            f"it has {', '.join(map(str, sizes))}"
        )
    values = {key: value for key, value in section.items() if not isinstance(key, int)}
    own = section.get(buffer_size) or {}
    if not isinstance(own, dict):
        raise UsageError(f"{path}: section {buffer_size} of {dataset} must hold `flag: value` lines, not {own!r}")
    return values | own
