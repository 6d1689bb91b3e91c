"""Trained models to hand over to other runs, in Mammoth's format (`--savecheck`, `--loadcheck`).

Like the checkpoints of a run (`utils.resume.store`) they are read with `weights_only=True` only.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import uuid
import zipfile
from argparse import Namespace
from datetime import datetime
from pathlib import Path
from reprlib import repr as shortened
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from utils.cli.flags import declared
from utils.errors import UserError
from utils.resume.files import atomic_write
from utils.resume.store import archive_damage, compact, reason_of, write_archive

_names: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def save_mammoth_checkpoint(
    task: int,
    end_task: int,
    args: Namespace,
    model: nn.Module,
    results: Any = None,
    optimizer_st: dict[str, Any] | None = None,
    scheduler_st: dict[str, Any] | None = None,
    checkpoint_name: str | None = None,
    state: dict[str, Any] | None = None,
) -> Path | None:
    """Write the trained model for others to start from (`--loadcheck`): weights, buffer, flags and results.

    Beside these, which are Mammoth's, `state` may hold what the same run's next task needs (`utils.run.hand_over`).
    With `--savecheck last` only the last of the tasks up to `end_task` is written. Returns the path, or None if nothing
    was due.
    """
    only_last = getattr(args, "savecheck", None) == "last"
    if checkpoint_name is None:
        if only_last and task + 1 < end_task:
            return None
        suffix = "joint" if getattr(args, "joint", False) else "last" if only_last else str(task)
        checkpoint_name = f"{run_name(args, model)}_{suffix}"
    path = Path(args.checkpoint_path, f"{checkpoint_name}.pt")
    # No machine's name.
    flags = {n: v for n, v in to_parsable_obj(args).items() if not n.startswith(("_", "conf_"))}
    content = {
        "model": _with_aliases(model),
        "optimizer": to_parsable_obj(optimizer_st),
        "scheduler": to_parsable_obj(scheduler_st),
        "args": flags,
        "results": to_parsable_obj(results),
        "state": state,
        **_buffer_content(args, model),
    }
    plain = compact(content, "checkpoint", {})
    atomic_write(path, lambda file: write_archive(plain, file, hashlib.sha256()), flag="--checkpoint_path")
    return path


def mammoth_load_checkpoint(
    path: str | os.PathLike[str],
    model: Any = None,
    ignore_classifier: bool = False,
    args: Namespace | None = None,
    return_only_args: bool = False,
) -> Any:
    """Load weights and buffer into `model`; returns `(model, results)`, or the stored flags if only they are wanted.

    A bare state dict holds backbone weights. Nothing is loaded unless everything fits. With `args`, flags that differ
    from the stored ones are reported.
    """
    path = Path(path)
    content = read_mammoth_checkpoint(path)
    stored = {name: value for name, value in (content.get("args") or {}).items() if declared(name).role.handed_on}
    if return_only_args:
        return stored
    if model is None:
        raise ValueError("a model is needed to load weights into")
    if args is not None:
        _report_differences(path, stored, to_parsable_obj(args))
    target, fitting = fitting_weights(path, model, content, ignore_classifier)
    if content.get("buffer") and "args" in content:
        _load_buffer(path, model, content)
    target.load_state_dict(fitting)
    return model, content.get("results") if "args" in content else None


def to_parsable_obj(value: Any) -> Any:
    """Settings and results as plain values: numbers stay numbers, what has no plain form becomes text."""
    if isinstance(value, Namespace):
        return to_parsable_obj(vars(value))
    if isinstance(value, dict):
        return {to_parsable_obj(key): to_parsable_obj(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(to_parsable_obj(part) for part in value)
    if isinstance(value, list | set | frozenset):
        return [to_parsable_obj(part) for part in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    for kind in (bool, int, float):  # also of a subclass, such as an enumeration's
        if isinstance(value, kind):
            return kind(value)
    return value if value is None or isinstance(value, Tensor) else str(value)


def run_name(args: Namespace, model: nn.Module) -> str:
    """One name for all files of a model. It is made from the flag `--ckpt_name` and never written back to it."""
    if model not in _names:
        parts = [args.model, args.dataset, getattr(args, "dataset_config", None)]
        parts += [getattr(args, "buffer_size", None) or 0, getattr(args, "n_epochs", None)]
        parts += [datetime.now().strftime("%Y%m%d-%H%M%S"), str(uuid.uuid4()).partition("-")[0]]
        _names[model] = "_".join(map(str, parts))
    prefix = getattr(args, "ckpt_name", None)
    return f"{prefix}_{_names[model]}" if prefix else _names[model]


def _with_aliases(model: nn.Module) -> dict[str, Tensor]:
    """The weights, also under the further names that Mammoth's class of a network has for them."""
    weights = model.state_dict()
    return weights | {alias: weights[name] for alias, name in _aliases(model, weights).items()}


def _aliases(model: nn.Module, weights: dict[str, Tensor]) -> dict[str, str]:
    """Further name → name, for the weights of networks that have `aliases` of their layers (`backbone.MNISTMLP`)."""
    found: dict[str, str] = {}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for alias, layer in getattr(module, "aliases", dict)().items():
            own = [name for name in weights if name.startswith(f"{prefix}{layer}.")]
            found |= {name.replace(f"{prefix}{layer}", f"{prefix}{alias}", 1): name for name in own}
    return found


def _buffer_content(args: Namespace, model: nn.Module) -> dict[str, Any]:
    """Field tensors in Mammoth's form; the counter, which that form lacks, stands beside them."""
    buffer = getattr(model, "buffer", None)
    if not hasattr(args, "buffer_size") or buffer is None:
        return {}
    if not hasattr(buffer, "serialize"):
        logging.warning("the checkpoint holds no buffer: a %s cannot be written", type(buffer).__name__)
        return {"buffer": None}
    return {"buffer": buffer.serialize(), "num_seen_examples": int(buffer.num_seen_examples)}


def read_mammoth_checkpoint(path: Path) -> dict[str, Any]:
    remedy = "give --loadcheck a file written by --savecheck"
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "does not exist"
        raise UserError(f"checkpoint {path} {what}; {remedy}")
    try:
        damage = archive_damage(path) if zipfile.is_zipfile(path) else None  # before torch 1.6 it was no archive
        content: Any = None if damage else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises whatever the bytes lead it to
        raise UserError(f"checkpoint {path} {reason_of(error)}; {remedy}") from error
    if damage:
        raise UserError(f"checkpoint {path} {damage}; {remedy}")
    weights = content.get("model") if isinstance(content, dict) and "args" in content else content
    if not isinstance(weights, dict) or not weights or not all(isinstance(w, Tensor) for w in weights.values()):
        raise UserError(f"checkpoint {path} holds no model weights; {remedy}")
    if "args" in content and (reason := _misfit(content)):
        raise UserError(f"checkpoint {path} is damaged: {reason}; {remedy}")
    return content


def _misfit(content: dict[str, Any]) -> str | None:
    """What is beside the weights and not of the kind that belongs there."""
    flags, fields, seen = (content.get(name) for name in ("args", "buffer", "num_seen_examples"))
    if flags is not None and not (isinstance(flags, dict) and all(isinstance(name, str) for name in flags)):
        return f"its args are of type {type(flags).__name__}, not flags by name"
    if fields is not None and not (isinstance(fields, dict) and all(isinstance(v, Tensor) for v in fields.values())):
        return "its buffer is not tensors by name"
    if seen is not None and (type(seen) is not int or seen < 0):
        return f"its num_seen_examples is {shortened(seen)}"
    return None


def fitting_weights(path: Path, model: Any, content: dict[str, Any], ignore_classifier: bool = False) -> Any:
    """(module that a file's weights are of, these under its names), if every one is there and has its shape."""
    target, weights = (model, content["model"]) if "args" in content else (model.net, content)
    expected = target.state_dict()
    # DataParallel puts its own name in front of the network's parts.
    found = {re.sub(r"(^|\.)module\.", r"\1", name): weight for name, weight in weights.items()}
    aliases = _aliases(target, expected)
    found = {name: weight for name, weight in found.items() if name not in aliases}
    if ignore_classifier:
        found = {name: weight for name, weight in found.items() if "classifier." not in name}
        found |= {name: weight for name, weight in expected.items() if "classifier." in name}
    for name in [*expected, *found]:
        shapes = [tuple(w[name].shape) if name in w else "absent" for w in (found, expected)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"checkpoint {path} does not fit this model: {name} is {shapes[0]} in the file and {shapes[1]} here; "
                "use the --model, --backbone and --dataset that it was made with"
            )
    return target, found


def _load_buffer(path: Path, model: Any, content: dict[str, Any]) -> None:
    if getattr(model, "buffer", None) is None:
        return  # a method without replay can start from the weights of one with it
    fields, seen = content["buffer"], content.get("num_seen_examples")
    try:
        model.load_buffer(fields)
    except (AssertionError, ValueError, RuntimeError, LookupError, TypeError, AttributeError) as error:
        rows = [len(field) for field in fields.values() if field.ndim]
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"the buffer of {path} does not fit ({reason}); it was made with --buffer_size {max(rows, default=0)}"
        ) from error
    if seen is not None:
        model.buffer.num_seen_examples = seen


def _report_differences(path: Path, stored: dict[str, Any], given: dict[str, Any]) -> None:
    names = sorted(name for name in stored.keys() & given.keys() if stored[name] != given[name])
    if names:
        changes = ", ".join(f"{name}: {stored[name]} → {given[name]}" for name in names)
        logging.warning("%s was made with other settings (%s)", path, changes)
