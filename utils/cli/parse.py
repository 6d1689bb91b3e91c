"""Command line and YAML files → one validated config.

Precedence, lowest first: the flag's own default, the dataset class, the dataset's YAML, the checkpoint of
`--loadcheck`, the model's `set_defaults`, the model's YAML, the config of the run given with `--resume`, and the
command line.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, get_origin

import backbone as backbones
import datasets
import models
from utils.cli import registry
from utils.cli.checks import check_by_model, complete, validate
from utils.cli.config import Config, carry_selection, is_selected, selected
from utils.cli.flags import framework_parser
from utils.cli.known_command import command_sha256
from utils.cli.layers import Layer, apply, forget_first
from utils.cli.mammoth_flags import add_mammoths_args
from utils.cli.parser import ArgumentGroup, ArgumentParser
from utils.cli.plugins import plugin_files
from utils.cli.selection import KINDS, choose, preselect
from utils.cli.values import binary_to_boolean_type, choice, number
from utils.errors import UsageError, UserError
from utils.run.identity import record


def parse_args(argv: list[str] | None = None) -> Config:
    """The whole command line, `sys.argv` by default; raises `UsageError` with a one-line reason."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if "--list" in argv:
        print(listing(_given_plugins(argv)))
        raise SystemExit(0)
    chosen, recorded = preselect(argv)
    if not chosen.model and chosen.help:
        framework_parser().print_help()
        raise SystemExit(0)
    if not chosen.help:
        _check_framework_flags(argv, chosen)
    parser = _build_parser(chosen, recorded)
    if chosen.help:
        parser.print_help()
        raise SystemExit(0)
    forget_first(parser, argv)
    args = parser.parse_strictly(argv, Config())
    carry_selection(chosen, args)
    args.dataset_config, args.plugin = chosen.dataset_config, chosen.plugin
    args.command_sha256 = command_sha256(argv)
    complete(args)
    validate(args)
    check_by_model(args)
    record(args)
    return args


def parser_of(argv: list[str]) -> ArgumentParser:
    """With all flags of the model, the dataset and the backbone that a command line names, and their defaults."""
    return _build_parser(*preselect(argv))


def _check_framework_flags(argv: list[str], chosen: Config) -> None:
    """What can be refused before a model is imported, and torch with it, which takes seconds."""
    framework_parser().unknown(argv)
    if chosen.backbone:
        choose(chosen, backbones.BACKBONES, chosen.backbone)
    datasets.read_dataset_config(chosen.dataset, chosen.dataset_config)


def listing(plugins: Sequence[str] = ()) -> str:
    """All registered names with one line each, read from the sources without importing them."""
    tables = {
        "models": models.get_model_entries(),
        "datasets": datasets.get_dataset_entries(),
        "backbones": backbones.get_backbone_entries(),
    }
    if plugins:
        tables["plugins"] = {
            name: e for kind in KINDS for name, e in registry.scan(kind, plugins).items() if not e.module
        }
    lines = []
    for title, entries in tables.items():
        lines += [f"{title}:"] + [f"  {entry.name:<20} {entry.summary}" for entry in entries.values()]
    return "\n".join(lines)


def _given_plugins(argv: list[str]) -> list[str]:
    parser = ArgumentParser(add_help=False)
    parser.add_argument("--plugin", action="append", default=[])
    return [str(file) for file in plugin_files(parser.parse_known_args(argv)[0].plugin)]


def _build_parser(chosen: Config, recorded: Layer) -> ArgumentParser:
    """All flags of the chosen model, dataset and backbone, with their defaults in place."""
    parser = framework_parser()
    model_flags = ArgumentGroup(parser, f"model {chosen.model}")
    _add_model_flags(parser, model_flags, chosen)
    layers = _default_layers(chosen, recorded, model_flags.defaults)

    if not is_selected(chosen, backbones.BACKBONES):
        choose(chosen, backbones.BACKBONES, chosen.backbone or _default_backbone(chosen, layers))
    own = datasets.own_parameters(datasets.get_dataset_class(chosen))
    _add_signature_flags(parser, f"dataset {chosen.dataset}", own)
    network = backbones.parameters(selected(chosen, backbones.BACKBONES).load())
    own = [parameter for name, parameter in network.items() if name not in backbones.FROM_DATASET]
    _add_signature_flags(parser, f"backbone {chosen.backbone}", own)
    add_mammoths_args(parser)
    # What a model sets without there being such a flag is an attribute of the flags, as always with argparse.
    known = parser.actions_by_dest()
    parser.set_defaults(**{name: value for name, value in model_flags.defaults.items() if name not in known})
    for layer in layers:
        apply(parser, layer)
    return parser


def _default_backbone(chosen: Config, layers: list[Layer]) -> str:
    for layer in reversed(layers):
        if layer.values.get("backbone"):
            return str(layer.values["backbone"])
    raise UsageError(f"--backbone is missing: {chosen.dataset} names no default; --list shows all backbones")


def _add_model_flags(parser: ArgumentParser, group: ArgumentGroup, chosen: Config) -> None:
    """What the model's `get_parser` adds; it may also return a parser of its own, whose flags are taken over."""
    cls = models.get_model_class(chosen)
    try:
        returned = cls.get_parser(group)  # type: ignore[arg-type]
        if isinstance(returned, argparse.ArgumentParser):
            group.take_over(returned)
    except (argparse.ArgumentError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"the flags of model {chosen.model} can't be added: {type(error).__name__}: {error}") from error
    if chosen.dgc and "buffer_size" not in parser.actions_by_dest():
        raise UsageError(f"--dgc 1: {chosen.model} has no replay buffer, and so nothing that DGC could calibrate")


def _default_layers(chosen: Config, recorded: Layer, set_by_model: dict[str, Any]) -> list[Layer]:
    from datasets.utils import default_flags

    preset, preset_file = models.read_model_config(
        chosen.model, chosen.model_config or "default", chosen.dataset, chosen.buffer_size
    )
    chosen.dataset_config = chosen.dataset_config or preset.pop("dataset_config", None)
    _, dataset_flags, dataset_file = datasets.read_dataset_config(chosen.dataset, chosen.dataset_config)
    layers = [
        Layer(f"dataset {chosen.dataset}", default_flags(datasets.get_dataset_class(chosen))),
        Layer(dataset_file, dataset_flags),
        Layer(f"model {chosen.model}", set_by_model),
        Layer(preset_file, preset, strict=not chosen.plugin),  # a plugin of that name may lack some flags
    ]
    # A resumed run repeats what it recorded; a handed-over model only gives defaults, below the model's own.
    layers.insert(len(layers) if chosen.resume else 2, recorded)
    return layers


def _add_signature_flags(parser: ArgumentParser, title: str, parameters: list[inspect.Parameter]) -> None:
    """One flag per parameter: type from the annotation, else from the default; required without a default."""
    if not parameters:
        return
    group = parser.add_argument_group(title)
    for parameter in parameters:
        required = parameter.default is parameter.empty
        default = None if required else parameter.default
        group.add_argument(
            f"--{parameter.name}",
            type=_flag_type(parameter.annotation, default),
            default=default,
            required=required,
            help=f"parameter of {title}",
        )


def _flag_type(annotation: Any, default: Any) -> Callable[[Any], Any]:
    if get_origin(annotation) is Literal:
        return choice(*get_args(annotation))
    kind = annotation if annotation in (int, float, str, bool) else type(default)
    if kind is bool:
        return binary_to_boolean_type
    return number(kind, 1 if kind is int else None) if kind in (int, float) else str
