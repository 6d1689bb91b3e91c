"""Split datasets. `get_dataset(args)` builds the one that `args.dataset` and `args.dataset_config` name."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import utils.registry as registry
from utils.errors import UsageError, nearest
from utils.yaml_io import read_yaml

if TYPE_CHECKING:
    from datasets.utils.continual_dataset import ContinualDataset

# Keys of a dataset YAML that describe the dataset itself; every other key is a default for a flag.
FIELDS = ("SETTING", "N_CLASSES_PER_TASK", "N_TASKS", "SIZE", "N_CLASSES", "AVAIL_SCHEDS", "MEAN", "STD")

REGISTERED_DATASETS: dict[str, type] = {}


def register_dataset(name: str) -> Callable[[type], type]:
    """Decorator that registers a dataset class under a name (a class attribute `NAME` does the same)."""

    def register(cls: type) -> type:
        REGISTERED_DATASETS[registry.normalise(name)] = cls
        return cls

    return register


DATASETS = registry.Kind("dataset", "datasets", "register_dataset", "ContinualDataset", REGISTERED_DATASETS)


def get_dataset_entries(plugins: Sequence[str] = ()) -> dict[str, registry.Entry]:
    return registry.scan(DATASETS, plugins)


def get_dataset_names(names_only: bool = False) -> Any:
    """The names, or a mapping from name to class (which imports every dataset)."""
    entries = get_dataset_entries()
    return list(entries) if names_only else {name: entry.load() for name, entry in entries.items()}


def _config_folder(dataset: str) -> Path:
    return registry.ROOT / "datasets" / "configs" / registry.normalise(dataset)


def get_dataset_config_names(dataset: str) -> list[str]:
    return sorted(path.stem for path in _config_folder(dataset).glob("*.yaml"))


def read_dataset_config(dataset: str, name: str | None) -> tuple[dict[str, Any], dict[str, Any], str]:
    """(fields, flag defaults, file) of a dataset YAML; without a name `default.yaml` is used if there is one."""
    names = get_dataset_config_names(dataset)
    if name is None and "default" not in names:
        return {}, {}, ""
    name = name or "default"
    if name not in names:
        raise UsageError(f"unknown dataset_config {name!r} for {dataset}{nearest(name, names)}")
    path = _config_folder(dataset) / f"{name}.yaml"
    content = {str(key): value for key, value in read_yaml(path).items()}
    fields = {key.upper(): _field(path, key.upper(), value) for key, value in content.items() if key.upper() in FIELDS}
    flags = {key: value for key, value in content.items() if key.upper() not in FIELDS}
    return fields, flags, str(path)


def _field(path: Path, key: str, value: Any) -> Any:
    """A field in the form that the classes have it; sizes and statistics are tuples there."""
    kinds: dict[str, Any] = {"SETTING": str, "N_TASKS": int, "N_CLASSES": int, "SIZE": list, "MEAN": list, "STD": list}
    kinds |= {"AVAIL_SCHEDS": list, "N_CLASSES_PER_TASK": (int, list)}
    numbers = value if isinstance(value, list) and key != "AVAIL_SCHEDS" else []
    wrong = not isinstance(value, kinds[key]) or isinstance(value, bool)
    if wrong or not all(isinstance(item, int | float) and item > 0 for item in numbers):
        raise UsageError(f"{path}: {key}: {value!r} is not what this field takes; see the dataset's class for its form")
    return tuple(value) if key in ("SIZE", "MEAN", "STD") else value


def get_dataset_class(args: Namespace) -> type[ContinualDataset]:
    """The class of `args.dataset`, with the fields of its YAML applied to a subclass.

    Never to the class itself: a second dataset in the same process must not inherit them.
    """
    cls: Any = registry.find(DATASETS, args.dataset, getattr(args, "plugin", ())).load()
    fields, _, _ = read_dataset_config(args.dataset, getattr(args, "dataset_config", None))
    return type(cls.__name__, (cls,), fields) if fields else cls


def get_dataset(args: Namespace) -> ContinualDataset:
    return get_dataset_class(args)(args)
