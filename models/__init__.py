"""Continual-learning methods, one per file. `get_model(...)` builds the one that `args.model` names."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import utils.cli.registry as registry
from utils.cli.config import FRAMEWORK, MODEL, selected, view
from utils.cli.yaml_io import read_yaml
from utils.errors import UsageError, UserError

if TYPE_CHECKING:
    from models.utils.continual_model import ContinualModel

MODELS = registry.Kind("model", "models", "ContinualModel")
REGISTERED_MODELS, register_model = MODELS.registered, MODELS.register


def get_model_entries() -> dict[str, registry.Entry]:
    return registry.scan(MODELS)


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
    entry = selected(args, MODELS)
    cls: Any = entry.load()
    if getattr(view(args, FRAMEWORK), "dgc", False):
        from models.utils.with_dgc import with_dgc

        return with_dgc(entry, cls)
    return cls


def get_model(args: Namespace, backbone: Any, loss: Any, transform: Any, dataset: Any) -> ContinualModel:
    return get_model_class(args)(backbone, loss, view(args, MODEL), transform, dataset)


def read_model_config(
    model: str, section: str, dataset: str, buffer_size: int | None, plugins: Sequence[str] = ()
) -> tuple[dict[str, Any], str]:
    """(flag defaults, file) of `models/config/<model>.yaml`; of a plugin's checkout, if that has one.

    The section `default` always applies; what it holds under a dataset's name, only there. `best` adds the dataset's
    own section and, in it, the buffer size's, which wins.
    """
    path = own_config_file(model, plugins) or config_file(model)
    if path is None:
        if section == "best":
            raise UsageError(f"--model_config best: there is no models/config/{model}.yaml with presets for {model}")
        return {}, ""
    content = _sections(path)
    dataset, default = registry.normalise(dataset), content.get("default", {})
    defaults = {key: value for key, value in default.items() if not isinstance(value, dict)} | default.get(dataset, {})
    if section == "best":
        defaults.update(_best(content, dataset, buffer_size, path))
    return defaults, str(path)


def _sections(path: Path) -> dict[str, Any]:
    """The sections of a model's YAML; with `like: MODEL` they are added to those of another model."""
    content = {key: {} if value is None else value for key, value in read_yaml(path).items()}
    like = content.pop("like", None)
    for name, values in content.items():
        if not isinstance(values, dict):
            raise UsageError(f"{path}: section {name!r} must hold `flag: value` lines, not {values!r}")
    other = config_file(str(like)) if like else None
    return _merged(_sections(other) if other else {}, content)


def _merged(base: dict[Any, Any], added: dict[Any, Any]) -> dict[Any, Any]:
    """Section by section; sections are called by their normalised names, flags and buffer sizes as they are."""
    result = dict(base)
    for key, value in added.items():
        if isinstance(value, dict):
            name = key if isinstance(key, int) else registry.normalise(str(key))
            result[name] = _merged(result.get(name) or {}, value)
        else:
            result[key] = value
    return result


def config_file(model: str, folder: Path = registry.ROOT / "models") -> Path | None:
    files = sorted((folder / "config").glob("*.yaml"))
    return next((path for path in files if registry.normalise(path.stem) == registry.normalise(model)), None)


def own_config_file(model: str, plugins: Sequence[str]) -> Path | None:
    """The presets that lie beside a model which is a plugin's."""
    entry = registry.scan_plugins(MODELS, plugins).get(registry.normalise(model))
    return config_file(model, entry.file.parent) if entry is not None else None


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


def __getattr__(name: str) -> Any:
    """`from models import ContinualModel`: loaded when asked for, because a listing of names needs no torch."""
    if name == "ContinualModel":
        from models.utils.continual_model import ContinualModel

        return ContinualModel
    raise AttributeError(f"module 'models' has no attribute {name!r}")
