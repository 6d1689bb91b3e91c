"""The flags that a model declares, and what they are called where the framework has flags of the same name."""

from __future__ import annotations

import argparse
import re

import models
from utils.cli.config import Config, selected
from utils.cli.flags import framework_flags
from utils.cli.parser import ArgumentGroup, ArgumentParser
from utils.errors import UsageError, UserError


def add_model_flags(parser: ArgumentParser, chosen: Config) -> ArgumentGroup:
    """What the model's `get_parser` adds; it may also return a parser of its own, whose flags are taken over."""
    cls, group = models.get_model_class(chosen), ArgumentGroup(parser, f"model {chosen.model}")
    try:
        returned = cls.get_parser(group)  # type: ignore[arg-type]
        if isinstance(returned, argparse.ArgumentParser):
            group.take_over(returned)
    except (argparse.ArgumentError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"the flags of model {chosen.model} can't be added: {type(error).__name__}: {error}") from error
    if chosen.dgc and "buffer_size" not in parser.actions_by_dest():
        raise UsageError(f"--dgc 1: {chosen.model} has no replay buffer, and so nothing that DGC could calibrate")
    return group


def only_model_flags(chosen: Config) -> ArgumentGroup:
    """The model's flags alone: those of the framework are declared when it is known which names are left."""
    return add_model_flags(ArgumentParser(add_help=False), chosen)


def may_clash(chosen: Config) -> bool:
    """Whether the model may have a flag of the framework's name: told by its source, and open for plugins."""
    if chosen.plugin or not chosen.model:
        return bool(chosen.plugin)
    entry = selected(chosen, models.MODELS)
    if not entry.module:
        return True
    source = entry.file.read_text(encoding="utf-8", errors="replace")
    return not framework_flags().isdisjoint(re.findall(r"""["'](--?\w+)["']""", source))
