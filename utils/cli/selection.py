"""The flags that are read before all others: model, dataset, backbone, plugins, and the run or file to continue."""

from __future__ import annotations

import difflib
import logging
from pathlib import Path
from typing import Any

import backbone as backbones
import datasets
import models
from utils.cli import registry
from utils.cli.config import Config, select
from utils.cli.flags import framework_parser, role
from utils.cli.layers import Layer
from utils.cli.parser import ArgumentParser, synonym
from utils.cli.plugins import plugin_files
from utils.cli.values import number
from utils.errors import START_AGAIN, UsageError, UserError
from utils.run.identity import stored_config

KINDS = (models.MODELS, datasets.DATASETS, backbones.BACKBONES)


def preselect(argv: list[str]) -> tuple[Config, Layer]:
    """The few flags on which the set of all flags depends, and what the run or file to continue has recorded."""
    declaring, chosen = framework_parser(), Config()
    _, rest = _early_parser(declaring).parse_known_args(argv, chosen)
    for name, value in vars(chosen).items():
        if value == "":
            raise UsageError(f"--{name} is empty; give a value or leave it out")
    recorded = _recorded_args(chosen)
    inherited = [name for name, flag in declaring.declared.items() if not flag.layered and flag.role.handed_on]
    for name in (*inherited, "buffer_size", "dgc"):
        if getattr(chosen, name) is None:
            value = recorded.values.get(name)  # whatever a file says; the flag's own type checks it later
            plain = value is None or (name in ("buffer_size", "dgc") and isinstance(value, int))
            setattr(chosen, name, value if plain else str(value))
    chosen.plugin = [str(file) for file in plugin_files(chosen.plugin or _plugins_of_run(chosen, recorded))]
    registry.refuse_useless(KINDS, chosen.plugin)
    if not chosen.model and not chosen.help:
        _refuse_without_model(rest)
    if chosen.model:
        choose(chosen, models.MODELS, chosen.model)
    choose(chosen, datasets.DATASETS, chosen.dataset or registry.DEFAULT_DATASET)
    return chosen, recorded


def _early_parser(declaring: ArgumentParser) -> ArgumentParser:
    """None stands for a flag that is not given. Names are checked later; here they must only not be empty."""
    parser = ArgumentParser(add_help=False)
    for name, action in declaring.actions_by_dest().items():
        if declaring.declared[name].early:
            action.default, action.type = None, action.type if name == "dgc" else None
            parser._add_action(action)
    parser.add_argument("--buffer_size", type=number(int, 1))  # for which there are presets
    return parser


def choose(chosen: Config, kind: registry.Kind, name: str) -> None:
    """Find what a name means, once for all."""
    found = registry.find(kind, name, chosen.plugin)
    registry.announce(kind, found)
    select(chosen, kind, found)


def _refuse_without_model(rest: list[str]) -> None:
    close = difflib.get_close_matches("--model", rest, n=1, cutoff=0.7)
    for flag in [*close, *(flag for flag in rest if flag.startswith("-") and synonym(flag) == "--model")]:
        raise UsageError(f"unknown flag {flag}; did you mean '--model'?")
    raise UsageError("--model is missing; `python main.py --list` shows all models")


def _recorded_args(chosen: Config) -> Layer:
    """The arguments stored by the run of `--resume` or by the checkpoint of `--loadcheck`."""
    if chosen.resume:
        path = Path(chosen.resume) / "config.yaml"
        if not path.is_file():
            raise UsageError(f"--resume {chosen.resume}: no run is there ({path} is missing); give a run's directory")
        return Layer(str(path), stored_config(path.parent, "args"))
    if chosen.loadcheck:
        from utils.checkpoints import read_mammoth_checkpoint

        stored = read_mammoth_checkpoint(Path(chosen.loadcheck)).get("args") or {}
        named = stored.get("plugin")  # a path is no permission to run what lies there
        if named and not chosen.plugin and not (chosen.model and chosen.dataset):
            raise UsageError(
                f"checkpoint {chosen.loadcheck} was made with --plugin {_as_given(named)}, and no file decides "
                "which code runs; give --plugin yourself if you trust it, or --model and --dataset that need none"
            )
        # Not strict: the file also records what was derived from the flags, and may come from another program.
        handed_on = {name: value for name, value in stored.items() if role(name).handed_on}
        return Layer(chosen.loadcheck, handed_on, strict=False)
    return Layer("", {})


def _as_given(plugins: Any) -> str:
    return " --plugin ".join(map(str, plugins)) if isinstance(plugins, list) else repr(plugins)


def _plugins_of_run(chosen: Config, recorded: Layer) -> list[str]:
    """The plugins of the run given by `--resume`, shown before anything imports them."""
    named = recorded.values.get("plugin") if chosen.resume else None
    if not named:
        return []
    if not isinstance(named, list) or not all(isinstance(file, str) for file in named):
        raise UserError(f"{recorded.source} is damaged: plugin: {named!r} is no list of files; {START_AGAIN}")
    logging.warning("--resume %s imports its plugin: %s", chosen.resume, ", ".join(named))
    return named
