"""The flags that are read before all others: model, dataset, backbone, plugins, and the run or file to continue."""

from __future__ import annotations

import argparse
import copy
import difflib
import logging
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import backbone as backbones
import datasets
import models
from utils.cli import registry
from utils.cli.config import Config, select
from utils.cli.flags import framework_parser
from utils.cli.layers import Layer
from utils.cli.model_flags import may_clash, only_model_flags
from utils.cli.parser import ArgumentParser, synonym
from utils.cli.plugins import plugin_files
from utils.cli.roles import Role
from utils.cli.values import binary_to_boolean_type, number
from utils.cli.yaml_io import read_yaml
from utils.errors import START_AGAIN, UsageError, UserError
from utils.run.identity import stored_config

KINDS = (models.MODELS, datasets.DATASETS, backbones.BACKBONES)


def preselect(argv: list[str], model: registry.Entry | None = None) -> tuple[Config, Layer]:
    """The few flags on which the set of all flags depends, and what the run or file to continue has recorded.

    `model`: what `--model` means, if that is no name of a file's.
    """
    declaring, chosen = framework_parser(), Config()
    given, rest = _early_parser(declaring).parse_known_args(argv)
    for name, value in vars(given).items():
        if value == "":
            raise UsageError(f"--{name} is empty; give a value or leave it out")
    early = [name for name, flag in declaring.declared.items() if flag.early]
    for name in early:
        prefixed = getattr(given, f"run_{name}")
        setattr(chosen, name, getattr(given, name) if prefixed is None else prefixed)
    chosen.buffer_size = given.buffer_size
    # Which plugins a run or file to continue needs is known from what it has recorded.
    named = chosen.model and (chosen.plugin or not (_is_run(chosen.resume) or Path(chosen.loadcheck or "").is_file()))
    if named:
        _choose_model(chosen, model)
        _leave_to_model(chosen, given, [name for name in early if name not in ("plugin", "model")])
    recorded = _recorded_args(chosen, model)
    _inherit(chosen, recorded, declaring)
    if not chosen.model and not chosen.help:
        _refuse_without_model(rest)
    if not named:
        _choose_model(chosen, model)
        # --resume/--loadcheck named the model, so they stay the framework's.
        others = [name for name in early if declaring.declared[name].role not in (Role.ORIGIN, Role.ONCE)]
        _leave_to_model(chosen, given, others)
    choose(chosen, datasets.DATASETS, chosen.dataset or registry.DEFAULT_DATASET)
    return chosen, recorded


def _early_parser(declaring: ArgumentParser) -> ArgumentParser:
    """None stands for a flag that is not given. Values are checked later; here they must only not be empty.

    Each flag may have a `run_` before its name, because the model may have one that is called the same.
    """
    parser = ArgumentParser(add_help=False)
    for name, action in declaring.actions_by_dest().items():
        if declaring.declared[name].early:
            action.default, action.type = None, _or_none(binary_to_boolean_type) if name == "dgc" else None
            parser._add_action(action)
            prefixed = copy.copy(action)
            prefixed.dest, prefixed.option_strings = f"run_{name}", [f"--run_{name}"]
            parser._add_action(prefixed)
    parser.add_argument("--buffer_size", type=_or_none(number(int, 1)))  # for which there are presets
    return parser


def _or_none(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """None for what the flag's own type will refuse, unless the flag turns out to be another."""

    def convert_(text: str) -> Any:
        try:
            return convert(text)
        except argparse.ArgumentTypeError:
            return None

    return convert_


def _choose_model(chosen: Config, given: registry.Entry | None) -> None:
    chosen.plugin = [str(file) for file in plugin_files(chosen.plugin or ())]
    registry.refuse_useless(KINDS, chosen.plugin)
    if given is not None:
        _select(chosen, models.MODELS, given)
    elif chosen.model:
        choose(chosen, models.MODELS, chosen.model)


def _leave_to_model(chosen: Config, given: Namespace, names: list[str]) -> None:
    """Forget values of flags that are the model's own; the framework's flag of such a name has a `run_` before it."""
    if not may_clash(chosen) or not chosen.model:
        return
    without_dgc = copy.copy(chosen)
    without_dgc.dgc = None
    own = only_model_flags(without_dgc).parser.flags()
    for name in names:
        if f"--{name}" in own and getattr(given, f"run_{name}") is None:
            setattr(chosen, name, None)


def _inherit(chosen: Config, recorded: Layer, declaring: ArgumentParser) -> None:
    """What the command line leaves open, as the run or file to continue has recorded it."""
    inherited = [name for name, flag in declaring.declared.items() if not flag.layered and flag.role.handed_on]
    for name in (*inherited, "buffer_size", "dgc"):
        if getattr(chosen, name) is None:
            # Whatever a file says; the flag's own type checks it later.
            value = recorded.values.get(f"run_{name}", recorded.values.get(name))
            plain = value is None or (name in ("buffer_size", "dgc") and isinstance(value, int))
            setattr(chosen, name, value if plain else str(value))
    chosen.plugin = chosen.plugin or _plugins_of_run(chosen, recorded)


def choose(chosen: Config, kind: registry.Kind, name: str) -> None:
    """Find what a name means, once for all."""
    _select(chosen, kind, registry.find(kind, name, chosen.plugin))


def _select(chosen: Config, kind: registry.Kind, found: registry.Entry) -> None:
    registry.announce(kind, found)
    select(chosen, kind, found)


def _refuse_without_model(rest: list[str]) -> None:
    close = difflib.get_close_matches("--model", rest, n=1, cutoff=0.7)
    for flag in [*close, *(flag for flag in rest if flag.startswith("-") and synonym(flag) == "--model")]:
        raise UsageError(f"unknown flag {flag}; did you mean '--model'?")
    raise UsageError("--model is missing; `python main.py --list` shows all models")


def _is_run(directory: str | None) -> bool:
    return directory is not None and Path(directory, "config.yaml").is_file()


def _recorded_args(chosen: Config, given: registry.Entry | None) -> Layer:
    """The arguments stored by the run of `--resume` or by the checkpoint of `--loadcheck`."""
    if chosen.resume:
        path = Path(chosen.resume) / "config.yaml"
        if not _is_run(chosen.resume):
            raise UsageError(f"--resume {chosen.resume}: no run is there ({path} is missing); give a run's directory")
        recorded = Layer(str(path), stored_config(path.parent, "args"), recorded=True)
        _refuse_another_model(chosen, recorded)
        config = read_yaml(path).get("config")
        if given is None and isinstance(config, dict) and config.get("class_sha256"):
            raise UsageError(
                f"--resume {chosen.resume}: its model is a class that was given to `run` in Python; give it there again"
            )
        return recorded
    if chosen.loadcheck:
        from utils.checkpoints import read_mammoth_checkpoint

        if "://" in chosen.loadcheck:
            raise UsageError(f"--loadcheck {chosen.loadcheck}: nothing is fetched; download the file and give its path")
        stored = read_mammoth_checkpoint(Path(chosen.loadcheck)).get("args") or {}
        named = stored.get("plugin")  # a path is no permission to run what lies there
        if named and not chosen.plugin and not (chosen.model and chosen.dataset):
            raise UsageError(
                f"checkpoint {chosen.loadcheck} was made with --plugin {_as_given(named)}, and no file decides "
                "which code runs; give --plugin yourself if you trust it, or --model and --dataset that need none"
            )
        # Not strict: the file also records what was derived from the flags, and may come from another program.
        return Layer(chosen.loadcheck, stored, strict=False, recorded=True)
    return Layer("", {})


def _refuse_another_model(chosen: Config, recorded: Layer) -> None:
    """Before its flags are looked up in the other model, which has none of them."""
    stored = recorded.values.get("model")
    if chosen.model and isinstance(stored, str) and registry.normalise(chosen.model) != registry.normalise(stored):
        raise UsageError(
            f"--model {chosen.model}: the run {chosen.resume} is of {stored}; leave out --model to resume it, or "
            "--resume to start another run"
        )


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
