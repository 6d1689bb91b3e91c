"""Mammoth's programming interface: `from mammoth import load_runner, train`.

    model, dataset = load_runner("er", "seq-digits", {"buffer_size": 200, "lr": 0.1, "seed": 0})
    train(model, dataset)
    required, optional = get_avail_args("seq-digits", "er")

Models, datasets and backbones that the program itself registers by `register_model` and so on are found by their names.
"""

from __future__ import annotations

import argparse
import copy
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from backbone import MammothBackbone, ReturnTypes, get_backbone_names, register_backbone
from datasets import ContinualDataset, get_dataset_names, register_dataset
from datasets.utils import set_default_from_args
from datasets.utils.continual_dataset import store_masked_loaders
from main import initialize
from models import ContinualModel, get_model_names, register_model
from utils.args import add_rehearsal_args
from utils.buffer import Buffer
from utils.cli.flags import framework_parser
from utils.cli.from_python import tokens
from utils.cli.parse import parse_args, parser_of
from utils.conf import base_path, get_device
from utils.errors import UserError
from utils.run.directory import RunDirectory
from utils.run.in_python import patient_signals, plain_errors
from utils.training import train as train_run

__all__ = [
    "Buffer",
    "ContinualDataset",
    "ContinualModel",
    "MammothBackbone",
    "ReturnTypes",
    "add_rehearsal_args",
    "base_path",
    "get_avail_args",
    "get_backbone_names",
    "get_dataset_names",
    "get_device",
    "get_model_names",
    "load_runner",
    "register_backbone",
    "register_dataset",
    "register_model",
    "set_default_from_args",
    "store_masked_loaders",
    "train",
]

NOT_OFFERED = ("help", "debug_mode")  # by `get_avail_args`, as in Mammoth


def load_runner(model: str, dataset: str, args: Mapping[str, Any]) -> tuple[Any, Any]:
    """The model and the dataset of a command, whose flags are given by name; None leaves a flag at its default."""
    built, data, _ = initialize(parse_args(_command(model, dataset, args)))
    return built, data


def train(model: Any, dataset: Any, args: Namespace | None = None) -> dict[str, Any]:
    """Train what `load_runner` has built, once; returns the run's summary.

    A run that was interrupted is continued. One that is finished is made again: here the trained model is wanted, not
    its results alone.
    """
    if dataset.test_loaders:
        raise UserError("this model and dataset were trained before; make new ones by load_runner")
    args = copy.copy(args or model.args)
    args.overwrite = args.overwrite or RunDirectory(args).finished() is not None
    with plain_errors():
        return train_run(model, dataset, args, patient_signals())


def get_avail_args(
    dataset: str | None = None, model: str | None = None, args: Mapping[str, Any] | None = None
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """(required, optional) flags by name, with descriptions and defaults; without a model the framework's alone."""
    parser = framework_parser() if model is None else parser_of(_command(model, dataset, args or {}))
    required: dict[str, dict[str, Any]] = {}
    optional: dict[str, dict[str, Any]] = {}
    for name, action in parser.actions_by_dest().items():
        if name in NOT_OFFERED or action.help == argparse.SUPPRESS:
            continue
        if action.required:
            required[name] = {"description": action.help}
        else:
            default = None if action.default == argparse.SUPPRESS else action.default
            optional[name] = {"default": default, "description": action.help}
    return required, optional


def _command(model: str, dataset: str | None, args: Mapping[str, Any]) -> list[str]:
    parser, given = framework_parser(), {"model": model, "dataset": dataset, **args}
    return [token for name, value in given.items() for token in tokens(parser, name, value)]
