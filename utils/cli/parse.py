"""Command line and YAML files → one validated Namespace.

Precedence, lowest first: the flag's own default, the dataset class, the dataset's YAML, the checkpoint of
`--loadcheck`, the model's `set_defaults`, the model's YAML, the config of the run given with `--resume`, and the
command line.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import logging
import os
import secrets
import socket
import sys
import uuid
from argparse import Namespace
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import backbone as backbones
import datasets
import models
from utils.args import (
    MAMMOTHS,
    ArgumentGroup,
    ArgumentParser,
    add_framework_args,
    add_mammoths_args,
    binary_to_boolean_type,
    choice,
    number,
    synonym,
)
from utils.cli import registry
from utils.cli.known_command import command_sha256
from utils.cli.plugins import plugin_files
from utils.errors import START_AGAIN, UsageError, UserError, nearest
from utils.run.identity import stored_config

KINDS = (models.MODELS, datasets.DATASETS, backbones.BACKBONES)


class Layer(NamedTuple):
    """Defaults from one source; later layers win."""

    source: str
    values: dict[str, Any]
    strict: bool = True  # an unknown key is an error


def parse_args(argv: list[str] | None = None) -> Namespace:
    """The whole command line, `sys.argv` by default; raises `UsageError` with a one-line reason."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if "--list" in argv:
        print(listing(_given_plugins(argv)))
        raise SystemExit(0)
    chosen = _preselect(argv)
    if not chosen.model and chosen.help:
        framework_parser().print_help()
        raise SystemExit(0)
    if not chosen.help:
        _check_framework_flags(argv, chosen)
    parser = _build_parser(chosen)
    if chosen.help:
        parser.print_help()
        raise SystemExit(0)
    _forget_first(parser, argv)
    args = parser.parse_strictly(argv)
    args.model, args.dataset, args.backbone = chosen.model, chosen.dataset, chosen.backbone
    args.dataset_config, args.plugin = chosen.dataset_config, chosen.plugin
    args.command_sha256 = command_sha256(argv)
    _complete(args)
    _validate(args)
    _check_by_model(args)
    return args


def _check_framework_flags(argv: list[str], chosen: Namespace) -> None:
    """What can be refused before a model is imported, and torch with it, which takes seconds."""
    framework_parser().unknown(argv)
    if chosen.backbone:
        registry.find(backbones.BACKBONES, chosen.backbone, chosen.plugin)
    datasets.read_dataset_config(chosen.dataset, chosen.dataset_config)


def framework_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="main.py",
        usage="python main.py --model NAME [--dataset NAME] [flags]",
        add_help=False,
        description="Train a continual-learning method on a sequence of tasks.",
        epilog="Add --model NAME (and --dataset NAME) to see their own flags and defaults. Boolean flags take 1 or 0.",
    )
    parser.add_argument("-h", "--help", action="store_true", default=argparse.SUPPRESS, help="show this help and exit")
    add_framework_args(parser)
    return parser


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


def _preselect(argv: list[str]) -> Namespace:
    """The few flags on which the set of all flags depends."""
    parser = ArgumentParser(add_help=False)
    for flag in ("--model", "--dataset", "--backbone", "--dataset_config", "--model_config", "--loadcheck", "--resume"):
        parser.add_argument(flag)
    parser.add_argument("--plugin", action="append")
    parser.add_argument("--dgc", type=binary_to_boolean_type)
    parser.add_argument("--buffer_size", type=number(int, 1))
    parser.add_argument("-h", "--help", action="store_true")
    chosen, rest = parser.parse_known_args(argv)
    for name, value in vars(chosen).items():
        if value == "":
            raise UsageError(f"--{name} is empty; give a value or leave it out")
    chosen.recorded = _recorded_args(chosen)
    for name in ("model", "dataset", "dataset_config", "buffer_size", "dgc"):
        if getattr(chosen, name) is None:
            recorded = chosen.recorded.values.get(name)  # whatever a file says; the flag's own type checks it later
            plain = recorded is None or (name in ("buffer_size", "dgc") and isinstance(recorded, int))
            setattr(chosen, name, recorded if plain else str(recorded))
    chosen.plugin = [str(file) for file in plugin_files(chosen.plugin or _plugins_of_run(chosen))]
    registry.refuse_useless(KINDS, chosen.plugin)
    if not chosen.model and not chosen.help:
        close = difflib.get_close_matches("--model", rest, n=1, cutoff=0.7)
        for flag in [*close, *(flag for flag in rest if flag.startswith("-") and synonym(flag) == "--model")]:
            raise UsageError(f"unknown flag {flag}; did you mean '--model'?")
        raise UsageError("--model is missing; `python main.py --list` shows all models")
    if chosen.model:
        chosen.model = _find(models.MODELS, chosen.model, chosen.plugin)
    chosen.dataset = _find(datasets.DATASETS, chosen.dataset or "seq-digits", chosen.plugin)
    return chosen


def _find(kind: registry.Kind, name: str, plugins: list[str]) -> str:
    entry = registry.find(kind, name, plugins)
    registry.announce(kind, entry)
    return entry.name


def _recorded_args(chosen: Namespace) -> Layer:
    """The arguments stored by the run of `--resume` or by the checkpoint of `--loadcheck`."""
    if chosen.resume:
        path = Path(chosen.resume) / "config.yaml"
        if not path.is_file():
            raise UsageError(f"--resume {chosen.resume}: no run is there ({path} is missing); give a run's directory")
        return Layer(str(path), stored_config(path.parent, "args"))
    if chosen.loadcheck:
        from utils.checkpoints import mammoth_load_checkpoint

        stored = dict(mammoth_load_checkpoint(chosen.loadcheck, return_only_args=True))
        named = stored.pop("plugin", None)  # a path is no permission to run what lies there
        if named and not chosen.plugin and not (chosen.model and chosen.dataset):
            raise UsageError(
                f"checkpoint {chosen.loadcheck} was made with --plugin {_as_given(named)}, and no file decides "
                "which code runs; give --plugin yourself if you trust it, or --model and --dataset that need none"
            )
        # Not strict: the file also records what was derived from the flags, and may come from another program.
        return Layer(chosen.loadcheck, stored, strict=False)
    return Layer("", {})


def _as_given(plugins: Any) -> str:
    return " --plugin ".join(map(str, plugins)) if isinstance(plugins, list) else repr(plugins)


def _plugins_of_run(chosen: Namespace) -> list[str]:
    """The plugins of the run given by `--resume`, shown before anything imports them."""
    named = chosen.recorded.values.get("plugin") if chosen.resume else None
    if not named:
        return []
    if not isinstance(named, list) or not all(isinstance(file, str) for file in named):
        raise UserError(f"{chosen.recorded.source} is damaged: plugin: {named!r} is no list of files; {START_AGAIN}")
    logging.warning("--resume %s imports its plugin: %s", chosen.resume, ", ".join(named))
    return named


def _build_parser(chosen: Namespace) -> ArgumentParser:
    """All flags of the chosen model, dataset and backbone, with their defaults in place."""
    parser = framework_parser()
    model_flags = ArgumentGroup(parser, f"model {chosen.model}")
    _add_model_flags(parser, model_flags, chosen)
    layers = _default_layers(chosen, model_flags.defaults)

    backbone = chosen.backbone or next(
        (layer.values["backbone"] for layer in reversed(layers) if layer.values.get("backbone")), None
    )
    if backbone is None:
        raise UsageError(f"--backbone is missing: {chosen.dataset} names no default; --list shows all backbones")
    chosen.backbone = _find(backbones.BACKBONES, str(backbone), chosen.plugin)
    dataset_class = datasets.get_dataset_class(chosen)
    _add_signature_flags(parser, f"dataset {chosen.dataset}", datasets.own_parameters(dataset_class))
    _, network = backbones.get_backbone_class(chosen.backbone, True, chosen.plugin)
    _add_signature_flags(
        parser, f"backbone {chosen.backbone}", [p for n, p in network.items() if n not in backbones.FROM_DATASET]
    )
    add_mammoths_args(parser)
    # What a model sets without there being such a flag is an attribute of the flags, as always with argparse.
    known = parser.actions_by_dest()
    parser.set_defaults(**{name: value for name, value in model_flags.defaults.items() if name not in known})
    for layer in layers:
        _apply(parser, layer)
    return parser


def _add_model_flags(parser: ArgumentParser, group: ArgumentGroup, chosen: Namespace) -> None:
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


def _default_layers(chosen: Namespace, set_by_model: dict[str, Any]) -> list[Layer]:
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
    layers.insert(len(layers) if chosen.resume else 2, chosen.recorded)
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


def _apply(parser: ArgumentParser, layer: Layer) -> None:
    """Make a layer's values the defaults of their flags; whatever gives a value lifts `required`."""
    actions = parser.actions_by_dest()
    for key, value in layer.values.items():
        if key in ("model", "dataset", "dataset_config", "plugin", "resume", "list"):
            continue
        if key in MAMMOTHS and not layer.strict:  # written by Mammoth
            continue
        if key not in actions and (not layer.strict or parser.get_default(key) is not None):
            continue
        if key not in actions:
            raise UsageError(f"{layer.source}: unknown key {key!r}{nearest(str(key), actions)}")
        action = actions[key]
        try:
            action.default = _coerce(action, value)
        except (argparse.ArgumentTypeError, ValueError, TypeError) as error:
            raise UsageError(f"{layer.source}: {key}: {error}") from None
        if value is not None:
            action.required = False


def _forget_first(parser: ArgumentParser, argv: list[str]) -> None:
    """`--n_epochs 5` is for all tasks, whatever a YAML says about the first; likewise `--lr_milestones`."""
    given, actions = {token.partition("=")[0] for token in argv}, parser.actions_by_dest()
    for flag in ("n_epochs", "lr_milestones"):
        if f"--{flag}" in given:
            actions[f"{flag}_first"].default = None


def _coerce(action: argparse.Action, value: Any) -> Any:
    """A YAML value passed through the flag's own type, element by element for lists."""
    if value is None:
        return None
    if isinstance(value, list) != (action.nargs in ("*", "+")) and action.dest != "custom_class_order":
        raise ValueError(
            f"{value!r} is {'a list' if isinstance(value, list) else 'no list'}, which the flag doesn't take"
        )
    convert = action.type if callable(action.type) else str
    converted = [convert(item) for item in value] if action.nargs in ("*", "+") else convert(value)
    if action.choices is not None and converted not in action.choices:
        raise ValueError(f"{value!r} is none of {', '.join(map(str, action.choices))}")
    return converted


def _complete(args: Namespace) -> None:
    """Values that follow from others."""
    dataset = datasets.get_dataset_class(args)
    height, width = dataset.SIZE
    args.num_classes = dataset.N_CLASSES
    args.in_channels = dataset.CHANNELS
    args.input_size = dataset.CHANNELS * height * width
    # Absolute, because a run may be resumed from another working directory.
    args.base_path = str(Path(args.base_path or registry.ROOT / "data").absolute())
    args.checkpoint_path = str(Path(args.checkpoint_path or registry.ROOT / "checkpoints").absolute())
    for file in ("loadcheck", "embeddings"):
        if getattr(args, file):
            setattr(args, file, str(Path(getattr(args, file)).absolute()))
    if hasattr(args, "minibatch_size") and args.minibatch_size is None:
        args.minibatch_size = args.batch_size
    args.seed_was_drawn = args.seed is None
    if args.seed is None:
        args.seed = secrets.randbelow(2**31)
    args.wandb_project = args.wandb_project or os.environ.get("WANDB_PROJECT")
    args.wandb_entity = args.wandb_entity or os.environ.get("WANDB_ENTITY")
    args.nowand = int(bool(args.nowand) or not args.wandb_project or args.debug_mode)
    # For models written for Mammoth, which may read them; nothing of ours does.
    args.conf_jobnum, args.conf_timestamp = str(uuid.uuid4()), str(datetime.now())
    args.conf_host, args.conf_git_hash = socket.gethostname(), None


def _validate(args: Namespace) -> None:
    """Refuse combinations that contradict each other, before anything is loaded or written."""
    dataset = datasets.get_dataset_class(args)
    n_tasks, n_classes = dataset.N_TASKS, dataset.N_CLASSES
    order = args.custom_class_order
    problems = [
        (
            order and sorted(order) != list(range(n_classes)),
            f"--custom_class_order must list each of 0…{n_classes - 1} once",
        ),
        (order and args.permute_classes, "--custom_class_order and --permute_classes exclude each other"),
        (args.fitting_mode == "iters" and args.n_iters is None, "--fitting_mode iters needs --n_iters"),
        (args.optim_nesterov and not args.optim_mom, "--optim_nesterov 1 needs --optim_mom above 0"),
        (
            args.lr_scheduler == "multisteplr" and not args.lr_milestones,
            "--lr_scheduler multisteplr needs --lr_milestones",
        ),
        (
            (args.start_from or 0) >= n_tasks,
            f"--start_from {args.start_from}: {args.dataset} has tasks 0…{n_tasks - 1}",
        ),
        ((args.stop_after or 1) > n_tasks, f"--stop_after {args.stop_after}: {args.dataset} has {n_tasks} tasks"),
        ((args.start_from or 0) >= (args.stop_after or n_tasks), "--start_from must lie before --stop_after"),
        (args.joint and (args.start_from or args.stop_after), "--joint has one task: no --start_from or --stop_after"),
        (args.joint and args.enable_other_metrics, "--joint has one task: no forward transfer to measure"),
        (args.label_perc < 1 and args.label_perc_by_class < 1, "--label_perc and --label_perc_by_class: give one"),
        (args.task_free and args.joint, "--task_free and --joint exclude each other: a joint run has no stream"),
        (
            args.resume and args.overwrite,
            "--resume goes on with a run and --overwrite throws it away; to start again, repeat the run's "
            "own command with --overwrite 1",
        ),
    ]
    for wrong, message in problems:
        if wrong:
            raise UsageError(message)
    dataset.check_args(args)


def _check_by_model(args: Namespace) -> None:
    """What only the model knows about its flags."""
    model = models.get_model_class(args)
    args.takes_unlabelled = "cssl" in getattr(model, "COMPATIBILITY", ())
    if args.takes_unlabelled and min(args.label_perc, args.label_perc_by_class) < 1:
        for flag in ("dgc", "dgc_diagnostics"):
            if getattr(args, flag, 0):
                raise UsageError(
                    f"--{flag} {int(getattr(args, flag))} needs the gradient of all training images, and --label_perc "
                    "or --label_perc_by_class leaves some without a label; leave one of the two out"
                )
    check = getattr(model, "check_args", None)
    try:
        if check is not None:
            check(args)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if args.task_free and "general-continual" not in getattr(model, "COMPATIBILITY", ()):
        raise UsageError(
            f"--task_free 1: {args.model} needs task boundaries (its COMPATIBILITY lacks 'general-continual')"
        )
