"""Split datasets. `get_dataset(args)` builds the one that `args.dataset` and `args.dataset_config` name."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import utils.cli.registry as registry
from datasets.utils import construct
from datasets.utils import own_parameters as own_parameters
from utils.cli.config import selected
from utils.cli.plugins import checkout_folder
from utils.cli.yaml_io import read_yaml
from utils.errors import UsageError, nearest

if TYPE_CHECKING:
    from datasets.utils.continual_dataset import ContinualDataset

# Keys of a dataset YAML that describe the dataset itself; every other key is a default for a flag.
FIELDS = ("SETTING", "N_CLASSES_PER_TASK", "N_TASKS", "SIZE", "N_CLASSES", "AVAIL_SCHEDS", "MEAN", "STD")

SETTINGS = ("class-il", "task-il", "domain-il", "general-continual", "biased-class-il")

# Keys of a dataset YAML that datasets with loaders of their own take: lists of torchvision's transforms.
TRANSFORMS = ("TRANSFORM", "TEST_TRANSFORM")

DATASETS = registry.Kind("dataset", "datasets", "ContinualDataset")
REGISTERED_DATASETS, register_dataset = DATASETS.registered, DATASETS.register


def get_dataset_names(names_only: bool = False) -> Any:
    """The names, or a mapping from name to class (which imports every dataset)."""
    entries = registry.scan(DATASETS)
    return list(entries) if names_only else {name: entry.load() for name, entry in entries.items()}


def config_folder(dataset: str) -> Path:
    return registry.ROOT / "datasets" / "configs" / registry.normalise(dataset)


def get_dataset_config_names(dataset: str) -> list[str]:
    return sorted(path.stem for path in config_folder(dataset).glob("*.yaml"))


def _config_files(dataset: str, plugins: Sequence[str]) -> dict[str, Path]:
    """YAML files by name: ours, and those of the plugins' checkouts, which win for a dataset that is a plugin's.

    Only such a dataset has its `default` from there: nobody has asked for it.
    """
    ours = {path.stem: path for path in config_folder(dataset).glob("*.yaml")}
    name = registry.normalise(dataset)
    theirs: dict[str, Path] = {}
    for folder in (checkout_folder(Path(plugin), "datasets") / "configs" / name for plugin in plugins):
        theirs |= {path.stem: path for path in folder.glob("*.yaml")}
    if name in registry.scan_plugins(DATASETS, plugins):
        return ours | theirs
    return {stem: path for stem, path in theirs.items() if stem != "default"} | ours


def read_dataset_config(
    dataset: str, name: str | None, plugins: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, Any], str]:
    """(fields, flag defaults, file) of a dataset YAML; without a name `default.yaml` is used if there is one."""
    files = _config_files(dataset, plugins)
    if name is None and "default" not in files:
        return {}, {}, ""
    name = name or "default"
    if name not in files:
        raise UsageError(f"unknown dataset_config {name!r} for {dataset}{nearest(name, files)}")
    path = files[name]
    content = {str(key): value for key, value in read_yaml(path).items()}
    known = (*FIELDS, *TRANSFORMS)
    fields = {key.upper(): _field(path, key.upper(), value) for key, value in content.items() if key.upper() in known}
    flags = {key: value for key, value in content.items() if key.upper() not in known}
    return fields, flags, str(path)


def _field(path: Path, key: str, value: Any) -> Any:
    """A field in the form that the classes have it; sizes and statistics are tuples there."""
    if key in TRANSFORMS:
        return value
    items = value if isinstance(value, list) else [value]
    whole = all(type(item) is int and item > 0 for item in items)
    fits = {
        "SETTING": value in SETTINGS,
        "N_TASKS": whole and items == [value],
        "N_CLASSES": whole and items == [value],
        "N_CLASSES_PER_TASK": whole,
        "SIZE": whole and items == value and len(items) == 2,
        "AVAIL_SCHEDS": items == value,
    }
    if not fits.get(key, items == value and all(type(item) in (int, float) and item > 0 for item in items)):
        raise UsageError(f"{path}: {key}: {value!r} is not what this field takes; see the dataset's class for its form")
    return tuple(value) if key in ("SIZE", "MEAN", "STD") else value


def get_dataset_class(args: Namespace, return_args: bool = False) -> Any:
    """The class of `args.dataset`; with `return_args` also the parameters by name that are its own flags."""
    cls = _dataset_class(args)
    return (cls, {parameter.name: parameter for parameter in own_parameters(cls)}) if return_args else cls


def _dataset_class(args: Namespace) -> type[ContinualDataset]:
    """The class of `args.dataset`, with the fields of its YAML applied to a subclass.

    Never to the class itself: a second dataset in the same process must not inherit them.
    """
    from datasets.utils.continual_dataset import ContinualDataset

    cls: Any = selected(args, DATASETS).load()
    fields, flags, file = read_dataset_config(
        args.dataset, getattr(args, "dataset_config", None), getattr(args, "plugin", ())
    )
    if cls.get_data_loaders is not ContinualDataset.get_data_loaders:
        if getattr(args, "n_tasks", None) or getattr(args, "classes_first_task", None):
            raise UsageError(f"--n_tasks, --classes_first_task: {args.dataset} cuts its tasks itself; leave them out")
        return _with_own_loaders(cls, fields, flags, file)
    for key in fields.keys() & set(TRANSFORMS):
        raise UsageError(f"{file}: {key}: {args.dataset} takes no transforms, only its class's CROP_PADDING and so on")
    for key in fields.keys() & {"MEAN", "STD"}:
        if len(fields[key]) != cls.CHANNELS:
            raise UsageError(f"{file}: {key}: {list(fields[key])} must be {cls.CHANNELS} numbers, one per channel")
    cls = _with_fields(cls, fields | cls.fields(args))
    return _with_fields(cls, _task_fields(cls, args))


def _with_fields(cls: Any, fields: dict[str, Any]) -> Any:
    return type(cls.__name__, (cls,), fields) if fields else cls


def _task_fields(cls: Any, args: Namespace) -> dict[str, Any]:
    """`N_TASKS` and `N_CLASSES_PER_TASK` under `--n_tasks` and `--classes_first_task`; nothing without these flags.

    All tasks have equally many classes, except the first if its number is given.
    """
    n_tasks, first = getattr(args, "n_tasks", None), getattr(args, "classes_first_task", None)
    if n_tasks is None and first is None:
        return {}
    flag = f"--n_tasks {n_tasks}" if n_tasks else f"--classes_first_task {first}"
    if cls.SETTING in ("domain-il", "general-continual"):
        raise UsageError(f"{flag}: the tasks of {cls.NAME} ({cls.SETTING}) have all classes; leave it out")
    n_tasks, n_classes = n_tasks or cls.N_TASKS, cls.N_CLASSES
    if n_tasks > n_classes:
        raise UsageError(f"{flag}: {cls.NAME} has {n_classes} classes, fewer than tasks; use at most {n_classes} tasks")
    if first is None:
        if n_classes % n_tasks:
            raise UsageError(
                f"{flag}: {n_classes} classes of {cls.NAME} make no {n_tasks} equal tasks; use a divisor of "
                f"{n_classes}, or --classes_first_task"
            )
        return {"N_TASKS": n_tasks, "N_CLASSES_PER_TASK": n_classes // n_tasks}
    rest, others = n_classes - first, n_tasks - 1
    if not others or rest < others or rest % others:
        raise UsageError(
            f"--classes_first_task {first}: the other {max(rest, 0)} classes of {cls.NAME} make no {others} equal "
            f"tasks; choose another --n_tasks (it counts all tasks, {n_tasks} now)"
        )
    return {"N_TASKS": n_tasks, "N_CLASSES_PER_TASK": [first] + [rest // others] * others}


def _with_own_loaders(cls: Any, fields: dict[str, Any], flags: dict[str, Any], file: str) -> type[ContinualDataset]:
    """A class written for Mammoth, made fit for the training loop; there every key of the YAML is an attribute, too."""
    from datasets.utils.foreign.own_loaders import OwnLoaders, compose

    attributes = flags | fields
    for key in attributes.keys() & set(TRANSFORMS):
        attributes[key] = compose(file, key, attributes[key])
    return type(cls.__name__, (OwnLoaders, cls), attributes)


def get_dataset(args: Namespace) -> ContinualDataset:
    return construct(get_dataset_class(args), args)


def __getattr__(name: str) -> Any:
    """`from datasets import ContinualDataset`: loaded when asked for, because a listing of names needs no torch."""
    if name == "ContinualDataset":
        from datasets.utils.continual_dataset import ContinualDataset

        return ContinualDataset
    raise AttributeError(f"module 'datasets' has no attribute {name!r}")
