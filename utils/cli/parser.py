"""The parser of all commands, the group of flags that a model fills, and what flags are called elsewhere."""

from __future__ import annotations

import argparse
import re
import sys
from argparse import Namespace
from collections.abc import Iterable
from typing import Any, NoReturn, TypeVar

from utils.cli.roles import Declared, Role
from utils.errors import UsageError, nearest

# What flags are called elsewhere, and here. A name that only looks like another one (--noise_rate) is worse than none.
SYNONYMS = {
    other: ours
    for ours, others in {
        "model": "method algorithm strategy approach",
        "dataset": "data benchmark",
        "backbone": "net network arch architecture",
        "n_epochs": "epochs epoch num_epochs nb_epochs max_epochs n_epoch",
        "n_iters": "iters iterations steps max_steps",
        "lr": "learning_rate",
        "batch_size": "batch bs train_batch_size mini_batch_size",
        "buffer_size": "memory memory_size mem_size mem buffer replay_size",
        "optimizer": "opt optim",
        "optim_wd": "wd weight_decay",
        "optim_mom": "mom momentum",
        "device": "gpu gpus gpu_id gpu_ids cuda",
        "base_path": "data_path data_dir data_root root",
        "results_path": "output output_dir out_dir save_dir log_dir logdir results_dir",
    }.items()
    for other in others.split()
}


def synonym(flag: str) -> str | None:
    """The flag that goes by another name elsewhere: `--lr` for `--learning-rate`."""
    ours = SYNONYMS.get(flag.lstrip("-").replace("-", "_").lower())
    return f"--{ours}" if ours else None


NEGATIVE_NUMBER = re.compile(r"(-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|-inf(inity)?|-nan)$", re.IGNORECASE)


Space = TypeVar("Space", bound=Namespace)


class Taken:
    """Names of flags that plugins have given theirs."""

    def __init__(self) -> None:
        self.options: set[str] = set()  # as they are typed
        self.dests: set[str] = set()  # as the flags hold them

    def add(self, actions: Iterable[argparse.Action]) -> None:
        for action in actions:
            self.options.update(action.option_strings)
            self.dests.add(action.dest)

    def claim(self, name: str) -> str:
        """A name that is free, and now taken."""
        free = self.free(name)
        self.options.add(f"--{free}")
        self.dests.add(free)
        return free

    def free(self, name: str) -> str:
        """The name, with as many `run_` before it as it takes."""
        while name in self.dests or f"--{name}" in self.options:
            name = f"run_{name}"
        return name


class ArgumentParser(argparse.ArgumentParser):
    """argparse without abbreviations, whose errors are one line and name the nearest valid flag."""

    def __init__(self, **kwargs: Any):
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", _HelpFormatter)
        super().__init__(**kwargs)
        self._negative_number_matcher = NEGATIVE_NUMBER  # argparse's own takes `-inf` and `-1e3` for flags
        # By the flag's name; those of models, datasets and backbones are not here.
        self.declared: dict[str, Declared] = {}
        # What models, datasets and backbones have called their flags: `declare` avoids these names.
        self.taken = Taken()
        self.renamed: dict[str, str] = {}  # name in the framework → name here, if that is another
        self.moved: dict[str, str] = {}  # the same of flags as they are typed

    def declare(
        self,
        group: Any,
        role: Role,
        *names: str,
        early: bool = False,
        layered: bool = True,
        usual: Any = None,
        **kwargs: Any,
    ) -> None:
        """Add a flag to a group of this parser, and say what it is to a run (see `Declared`).

        A name that is taken gets a `run_`. What is usual is the default, too.
        """
        own = next(name for name in names if name.startswith("--")).removeprefix("--")
        dest = self.rename(own)
        for name in self.taken.options.intersection(names):
            self.moved[name] = f"--{self.taken.free(name.removeprefix('--'))}" if name.startswith("--") else f"--{own}"
        options = [self.moved.get(name, name) for name in names if name not in self.moved or name.startswith("--")]
        kwargs.setdefault("default", usual)
        group.add_argument(*options, dest=dest, **kwargs)
        self.declared[dest] = Declared(role, early, layered and role is not Role.ONCE, usual)

    def rename(self, name: str) -> str:
        """The name under which the flags hold what the framework calls so."""
        if name in self.taken.dests:
            self.renamed[name] = self.taken.free(name)
        return self.renamed.get(name, name)

    def error(self, message: str) -> NoReturn:
        if missing := message.partition("arguments are required: ")[2]:
            preset = " or a preset in models/config" if self.declared else ""  # other commands have none
            raise UsageError(f"missing {missing}: no default is known; give a value{preset}")
        raise UsageError(" ".join(message.split()))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Every parse comes through here, a subcommand's too: a flag given twice is an error."""
        argv = sys.argv[1:] if args is None else list(args)
        known = self._option_string_actions
        given = [token.partition("=")[0] for token in argv if token.partition("=")[0] in known]
        for flag in given:
            if given.count(flag) > 1 and not isinstance(known[flag], argparse._AppendAction):
                raise UsageError(f"{flag} is given {given.count(flag)} times; give it once")
        return super().parse_known_args(argv, namespace)

    def parse_strictly(self, argv: list[str], namespace: Space) -> Space:
        """Parse all of `argv`; a flag that is unknown is an error."""
        if rest := self.unknown(argv):
            flag = rest[0].partition("=")[0]
            if flag.startswith("-"):
                raise UsageError(f"unknown flag {flag}{self._suggestion(flag)}")
            raise UsageError(f"unexpected argument {rest[0]!r}; flags start with --")
        return self.parse_args(argv, namespace)

    def _suggestion(self, flag: str) -> str:
        known = self._option_string_actions
        if synonym(flag) in known:
            return f"; did you mean {synonym(flag)!r}?"
        if flag == "--buffer_size" and self.declared:
            return "; this method keeps no buffer"
        if flag[1:] in known:  # `run(O=1)` in Python, where a name is needed that is one
            return f"; did you mean {known[flag[1:]].option_strings[-1]!r}?"
        return nearest(flag, known, "; add --help to this command to list its flags")

    def unknown(self, argv: list[str]) -> list[str]:
        """Tokens that belong to no flag; the values of known flags are checked.

        A missing required flag is no error yet: it may be the one that is misspelt.
        """
        required = [action for action in self._actions if action.required]
        try:
            for action in required:
                action.required = False
            return self.parse_known_args(argv)[1]
        finally:
            for action in required:
                action.required = True

    def as_typed_here(self, message: str) -> str:
        """A message about flags of the framework, by the names that they have on this command line."""
        return re.sub(r"--\w+", lambda flag: self.moved.get(flag[0], flag[0]), message)

    def flags(self) -> set[str]:
        """As they are typed: `--lr`, `-O`."""
        return set(self._option_string_actions)

    def actions_by_dest(self) -> dict[str, argparse.Action]:
        return {action.dest: action for action in self._actions if action.option_strings}


class _HelpFormatter(argparse.HelpFormatter):
    """Shows defaults where there are any, booleans as the 0 or 1 that the flag takes, and kinds of numbers."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=34, width=110)

    def _get_help_string(self, action: argparse.Action) -> str:
        default, text = action.default, action.help or ""
        if action.required:
            return f"{text} (required)".strip()
        if default is None:
            default = getattr(action.type, "word_for_none", None)
        if default in (None, [], argparse.SUPPRESS):
            return text
        shown = int(default) if isinstance(default, bool) else default
        return f"{text} (default: {shown})".strip().replace("%", "%%")

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return getattr(action.type, "metavar", "NAME")


class ArgumentGroup:
    """What a `get_parser` receives: flags land in one titled group of the help, `set_defaults` is remembered.

    argparse's own groups can't be nested any more (an error from Python 3.14), but models do nest them.
    """

    def __init__(self, parser: ArgumentParser, title: str, defaults: dict[str, Any] | None = None):
        self.parser = parser
        self._group = parser.add_argument_group(title)
        self.defaults: dict[str, Any] = {} if defaults is None else defaults

    def add_argument(self, *args: Any, **kwargs: Any) -> argparse.Action:
        return self._group.add_argument(*args, **kwargs)

    def add_argument_group(self, title: str = "more", *_: Any, **__: Any) -> ArgumentGroup:
        return ArgumentGroup(self.parser, title, self.defaults)

    def set_defaults(self, **defaults: Any) -> None:
        self.defaults.update(defaults)

    def take_over(self, other: argparse.ArgumentParser) -> None:
        """Add the flags and defaults of another parser, except those that exist already."""
        for action in other._actions:
            if not self.parser._option_string_actions.keys() & set(action.option_strings):
                self._group._add_action(action)
        self.defaults.update(other._defaults)
