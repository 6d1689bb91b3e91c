"""What identifies a run: the settings that matter to its numbers, and their hash."""

from __future__ import annotations

import hashlib
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import datasets
from utils.args import MAMMOTHS
from utils.cli.plugins import digest
from utils.cli.yaml_io import read_yaml
from utils.errors import START_AGAIN, UsageError, UserError

# Part of every hash: raised when a change of the code moves numbers, so that old results are not taken for new ones.
# A flag that is added between two versions has the default None (docs/extending.md), so that it renames no run.
RESULTS_VERSION = 2

# Flags that leave the numbers of a run as they are.
NEUTRAL = frozenset(
    """base_path results_path checkpoint_path device notes non_verbose nowand wandb_project wandb_entity wandb_name
    wandb_group wandb_tags savecheck ckpt_name checkpoint_minutes checkpoint_every model_config dataset_config
    loadcheck plugin embeddings n_tasks classes_first_task""".split()
)
# Values that parsing or building adds to the flags; they follow from them.
DERIVED = frozenset(
    """num_classes in_channels input_size seed_was_drawn class_order wandb_url conf_jobnum conf_timestamp conf_host
    conf_git_hash takes_unlabelled command_sha256""".split()
)
# Flags of Mammoth's that have a single value here and so change nothing.
OFF = {name: value for name, (value, _) in MAMMOTHS.items()}
# What a command does to a run, which is not repeated when the run is resumed.
ONCE = frozenset(["resume", "overwrite"])


def model_name(args: Namespace) -> str:
    """Under which the results of a run are filed."""
    return f"dgc-{args.model}" if getattr(args, "dgc", False) else args.model


def freeze(args: Namespace) -> None:
    """Keep the flags as they are now: what a model does to them later (Mammoth's may) is its own affair."""
    vars(args).pop("_frozen", None)
    args._frozen = recorded_args(args)


def recorded_args(args: Namespace) -> dict[str, Any]:
    """All flags as plain values, for `config.yaml`."""
    if hasattr(args, "_frozen"):
        return args._frozen
    return {
        name: str(value) if name == "device" and value is not None else value
        for name, value in sorted(vars(args).items())
        if name not in DERIVED | ONCE
    }


def relevant_config(args: Namespace) -> dict[str, Any]:
    """Everything that the numbers of a run depend on. A flag that is None was not given, and is left out."""
    dataset = datasets.get_dataset_class(args)
    config = {name: value for name, value in recorded_args(args).items() if name not in NEUTRAL}
    config = {name: value for name, value in config.items() if name not in OFF or value != OFF[name]}
    fields = {name: getattr(dataset, name, None) for name in datasets.FIELDS}
    given, _, _ = datasets.read_dataset_config(args.dataset, args.dataset_config)
    fields |= {name: given[name] for name in datasets.TRANSFORMS if name in given}
    config["dataset_fields"] = json.loads(json.dumps(fields, default=str))
    config["content_sha256"] = getattr(dataset, "content_sha256", lambda _: None)(args)
    config["results_version"] = RESULTS_VERSION
    if args.plugin:
        config["plugin_sha256"] = [digest(Path(file)) for file in args.plugin]
    if args.loadcheck:
        config["loadcheck_sha256"] = _loadcheck_digest(args)
    return {name: value for name, value in config.items() if value is not None}


def _loadcheck_digest(args: Namespace) -> str | None:
    """Of the model that a run starts from; a resumed run has it in its checkpoint and needs the file no more."""
    if args.resume:
        return stored_config(Path(args.resume)).get("loadcheck_sha256")
    return hashlib.sha256(Path(args.loadcheck).read_bytes()).hexdigest()


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
