"""Command line and YAML files → one validated config.

Precedence, lowest first: the flag's own default, the dataset class, the dataset's YAML, the checkpoint of
`--loadcheck`, the model's `set_defaults`, the model's YAML, the config of the run given with `--resume`, and the
command line.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import backbone as backbones
import datasets
from utils.cli import registry
from utils.cli.all_flags import build_parser
from utils.cli.checks import check_by_model, complete, validate
from utils.cli.config import FRAMEWORK, Config, carry_selection, selected, view
from utils.cli.flags import framework_parser
from utils.cli.known_command import command_sha256
from utils.cli.layers import forget_first, refuse
from utils.cli.model_flags import may_clash
from utils.cli.parser import ArgumentParser
from utils.cli.plugins import plugin_files
from utils.cli.selection import KINDS, choose, preselect
from utils.cli.values import number
from utils.errors import UsageError
from utils.run.identity import record


def parse_args(cmd: list[str] | None = None, model: registry.Entry | None = None) -> Config:
    """The whole command line, `sys.argv` by default; raises `UsageError` with a one-line reason.

    `model`: what `--model` means, if that is no name of a file's (see `utils.cli.from_python`).
    """
    argv = sys.argv[1:] if cmd is None else list(cmd)
    if "--list" in argv:
        print(listing(_given_plugins(argv)))
        raise SystemExit(0)
    chosen, recorded = preselect(argv, model)
    if not chosen.model and chosen.help:
        framework_parser().print_help()
        raise SystemExit(0)
    if not chosen.help and not may_clash(chosen):
        _check_framework_flags(argv, chosen)
    parser, names = build_parser(chosen, recorded)
    if chosen.help:
        _name_choices(parser, chosen.plugin)
        parser.print_help()
        raise SystemExit(0)
    _announce(parser, chosen)
    forget_first(parser, argv)
    refuse(parser, argv)
    args: Config = view(parser.parse_strictly(argv, Config()), FRAMEWORK, names)
    carry_selection(chosen, args)
    args.dataset_config, args.plugin = chosen.dataset_config, chosen.plugin
    # Which run is meant can't be told without the model where it has taken names of the framework, nor by the command
    # alone where a class of this process is trained.
    own = any(selected(args, kind).sha256 for kind in KINDS)
    args.command_sha256 = None if parser.moved or names or own else command_sha256(argv)
    try:
        complete(args)
        validate(args)
        check_by_model(args)
    except UsageError as error:
        raise UsageError(parser.as_typed_here(str(error))) from None
    record(args)
    return args


def _name_choices(parser: ArgumentParser, plugins: Sequence[str]) -> None:
    """All names that can be given, in the help of the flag that takes them."""
    actions = parser.actions_by_dest()
    for kind in KINDS:
        action = actions[parser.renamed.get(kind.name, kind.name)]
        action.help = f"{action.help}: {', '.join(registry.scan(kind, plugins))}"


def _announce(parser: ArgumentParser, chosen: Config) -> None:
    """One line says which flags have another name on this command line."""
    if parser.moved:
        taken, ours = zip(*sorted(parser.moved.items()), strict=True)
        whose = "has a" if len(taken) == 1 else "has"
        logging.warning(
            "model %s %s %s of its own; the framework's is %s here",
            chosen.model,
            whose,
            ", ".join(taken),
            ", ".join(ours),
        )


def parser_of(argv: list[str]) -> ArgumentParser:
    """With all flags of the model, the dataset and the backbone that a command line names, and their defaults."""
    return build_parser(*preselect(argv))[0]


def _check_framework_flags(argv: list[str], chosen: Config) -> None:
    """What can be refused before a model is imported, and torch with it, which takes seconds."""
    framework = framework_parser()
    framework.add_argument("--buffer_size", type=number(int, 1))  # of all replay methods, with a range of its own
    framework.unknown(argv)
    if chosen.backbone:
        choose(chosen, backbones.BACKBONES, chosen.backbone)
    if chosen.dataset_config and not datasets.get_dataset_config_names(chosen.dataset):
        raise UsageError(f"unknown dataset_config {chosen.dataset_config!r}: {chosen.dataset} has none; leave it out")
    datasets.read_dataset_config(chosen.dataset, chosen.dataset_config, chosen.plugin)


def listing(plugins: Sequence[str] = ()) -> str:
    """All registered names with one line each, read from the sources without importing them."""
    tables = {f"{kind.name}s": registry.scan(kind) for kind in KINDS}
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
