"""What identifies a run: the settings that matter to its numbers, and their hash."""

from __future__ import annotations

import copy
import hashlib
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import datasets
import models
from utils.cli.config import FRAMEWORK, Config, declared_in, selected
from utils.cli.plugins import helpers
from utils.cli.yaml_io import read_yaml
from utils.errors import START_AGAIN, UsageError, UserError
from utils.resume.files import file_digest

# Part of every hash: raised when a change of the code moves numbers, so that old results are not taken for new ones.
# A flag that is added between two versions has the default None (docs/extending.md), so that it renames no run.
RESULTS_VERSION = 2


def model_name(args: Namespace) -> str:
    """The name under which the results of a run are filed."""
    return f"dgc-{args.model}" if getattr(args, "dgc", False) else args.model


def record(args: Config) -> None:
    """Keep the flags as they are now: what a model does to them later (Mammoth's may) is its own affair."""
    args._recorded = json.dumps(_recorded(args))  # text, which nobody can change in place


def recorded_args(args: Namespace) -> dict[str, Any]:
    """All flags as plain values, for `config.yaml`; the device is the one in use, as soon as that is known."""
    recorded = json.loads(args._recorded) if hasattr(args, "_recorded") else _recorded(args)
    return recorded | {_device_flag(args): _device(args)}


def _recorded(args: Namespace) -> dict[str, Any]:
    flags = vars(args) | {_device_flag(args): _device(args)}
    return {name: value for name, value in sorted(flags.items()) if declared_in(args, name).role.recorded}


def _device_flag(args: Namespace) -> str:
    names = getattr(args, "_names", None)
    return "device" if names is None else names.of[FRAMEWORK].get("device", "device")


def _device(args: Namespace) -> str | None:
    device = getattr(args, "device", None)
    return None if device is None else str(device)


def changed(args: Config, **changes: Any) -> Config:
    """The same command with other values of some flags."""
    other = copy.copy(args)
    for name, value in changes.items():
        setattr(other, name, value)
    record(other)
    return other


def relevant_config(args: Namespace) -> dict[str, Any]:
    """Everything that the numbers of a run depend on. A flag that is None was not given, and is left out."""
    recorded, args = recorded_args(args), copy.copy(args)
    vars(args).update(recorded)  # a model may have written to them
    dataset = datasets.get_dataset_class(args)
    config = {name: value for name, value in recorded.items() if declared_in(args, name).hashed(value)}
    fields = {name: getattr(dataset, name, None) for name in datasets.FIELDS}
    given, _, _ = datasets.read_dataset_config(args.dataset, args.dataset_config, args.plugin)
    fields |= {name: given[name] for name in datasets.TRANSFORMS if name in given}
    config["dataset_fields"] = json.loads(json.dumps(fields, default=str))
    config["content_sha256"] = getattr(dataset, "content_sha256", lambda _: None)(args)
    config["results_version"] = RESULTS_VERSION
    if args.plugin:
        config["plugin_sha256"] = [file_digest(file) for file in args.plugin]
        parts = [part for file in args.plugin for part in helpers(Path(file))]
        # None, and so left out, for a plugin of one file: such runs keep the name that they had.
        config["helper_sha256"] = [file_digest(part) for part in parts] or None
    config["class_sha256"] = selected(args, models.MODELS).sha256
    if args.loadcheck:
        config["loadcheck_sha256"] = _loadcheck_digest(args)
    config["registered_sha256"] = _registered_digests(args) or None
    return {name: value for name, value in config.items() if value is not None}


def _registered_digests(args: Namespace) -> list[str]:
    """SHA-256 of the sources of a dataset and a backbone that this process itself has registered by a decorator."""
    chosen = getattr(args, "_selection", {})
    entries = [chosen[kind] for kind in ("dataset", "backbone") if kind in chosen]
    return [entry.sha256 for entry in entries if entry.sha256 is not None]


def _loadcheck_digest(args: Namespace) -> str | None:
    """SHA-256 of the --loadcheck file; a resumed run has the model in its checkpoint and no longer needs the file."""
    if args.resume:
        return stored_config(Path(args.resume)).get("loadcheck_sha256")
    return file_digest(args.loadcheck)


def stored_config(directory: Path, section: str = "config") -> dict[str, Any]:
    """A section of a run's `config.yaml`: `config`, what its hash covers, or `args`, all flags."""
    try:
        content = read_yaml(directory / "config.yaml").get(section)
    except UsageError as error:
        raise UserError(f"{error}; {START_AGAIN}") from None
    if not isinstance(content, dict):
        raise UserError(f"{directory / 'config.yaml'} is damaged: it has no {section!r}; {START_AGAIN}")
    return content


def config_hash(config: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]


def difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """`lr: 0.1 → 0.03, n_epochs: 5 → 10` for the settings in which two configs differ."""
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return ", ".join(f"{name}: {old.get(name)} → {new.get(name)}" for name in names)
