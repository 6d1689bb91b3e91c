"""Flags of Mammoth that have one value here: commands and models written for it may name and read them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from utils.cli.parser import ArgumentParser
from utils.cli.roles import Role

NO_EARLY_STOPPING = "there is no early stopping; use --n_epochs and --eval_epochs"
# Name → the value (None: the flag can only be left out), and what to say to any other.
MAMMOTHS: dict[str, tuple[Any, str]] = {
    "custom_task_order": (None, "give the order of the classes by --custom_class_order"),
    "class_order": (None, "give it by --custom_class_order"),
    "distributed": ("no", "a run uses one device; reproduce.py runs several at once"),
    "disable_log": (False, "a run is resumed from what it writes; --results_path puts that elsewhere"),
    "save_checkpoint_mode": ("safe", "pickled objects are neither written nor read"),
    "save_after_interrupt": (True, "a signal always leaves a checkpoint, from which the same command resumes"),
    "load_best_args": (None, "use --model_config best"),
    "ignore_other_metrics": (True, "use --enable_other_metrics 1"),
    "csv_log": (True, "accuracy.csv and per_class.csv are always written"),
    "tensorboard": (False, "there is metrics.jsonl, and wandb"),
    "transform_type": (None, "this dataset has no choice of augmentations"),
    **{f"early_stopping_{part}": (None, NO_EARLY_STOPPING) for part in ("patience", "metric", "freq", "epsilon")},
}


def add_mammoths_args(parser: ArgumentParser) -> None:
    """After all others, because a dataset or a model may have a flag of such a name itself. Models may read them."""
    for name, (value, reason) in MAMMOTHS.items():
        if f"--{name}" not in parser.flags() and name not in parser.taken.dests:
            default = argparse.SUPPRESS if value is None else value
            only = _only(value, reason)
            hidden: Any = {"default": default, "help": argparse.SUPPRESS}
            # Some were switches without a value, long ago.
            parser.declare(parser, Role.FIXED, f"--{name}", usual=value, nargs="?", const="1", type=only, **hidden)


def _only(value: Any, reason: str) -> Callable[[Any], Any]:
    def convert(text: Any) -> Any:
        given = str(text).lower() in ("1", "true", "yes", "t", "y") if isinstance(value, bool) else text
        if given != value:
            raise argparse.ArgumentTypeError(f"{text} is not possible: {reason}")
        return value

    return convert
