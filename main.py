"""`python main.py --model er --dataset seq-cifar100 --buffer_size 500`, or `run(...)`: parse → build → train."""

from __future__ import annotations

import logging
import sys
from argparse import Namespace
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import utils.cli.installed  # noqa: F401  first of all
from utils.cli import parse
from utils.cli.console import NOT_SHOWN, one_line_failures, open_standard_streams, show_messages
from utils.cli.known_command import finished_run
from utils.mammoth.helpers import under_test
from utils.status import say

if TYPE_CHECKING:
    from utils.cli.registry import Entry
    from utils.resume.signals import StopSignals
    from utils.run.result import Result

__all__ = ["initialize", "main", "parse_args", "run"]


def parse_args(cmd: list[str] | None = None, return_parser_only: bool = False) -> Any:
    """The flags of a command line, `sys.argv` by default; or, as Mammoth's does, the parser that knows them all."""
    argv = sys.argv[1:] if cmd is None else cmd
    return parse.parser_of(argv) if return_parser_only else parse.parse_args(argv)


def initialize(args: Namespace) -> tuple[Any, Any, Namespace]:
    """Build the dataset and the model that `args` describe, on their device."""
    from backbone import get_backbone
    from datasets import get_dataset
    from models import get_model
    from utils.conf import (
        allow_waiting_without_cuda,
        base_path,
        begin_on,
        get_checkpoint_path,
        set_random_seed,
        use_deterministic_kernels,
    )
    from utils.resume.files import require_writable
    from utils.run.environment import git_commit
    from utils.run.precision import optimise

    args.device = begin_on(args.device)
    args.conf_git_hash = git_commit()  # for models that read it
    base_path(args.base_path)  # for code that asks without `args`
    checkpoints = get_checkpoint_path(args.checkpoint_path)
    if args.savecheck:
        require_writable(Path(checkpoints), "--checkpoint_path")
    allow_waiting_without_cuda()
    set_random_seed(args.seed)
    use_deterministic_kernels(args.deterministic)
    dataset = get_dataset(args)
    dataset.prepare()
    net = get_backbone(args).to(args.device)
    optimise(net, args.device, args.code_optimization)
    model = get_model(args, net, dataset.get_loss(), dataset.get_transform(), dataset)
    model.net.to(args.device)  # a part that the model's constructor has replaced
    _record(args, model)
    return model, dataset, args


def _record(args: Namespace, model: Any) -> None:
    """What Mammoth's own tests look for among the messages."""
    from utils.checkpoints import run_name

    logging.debug("%s", Namespace(**vars(args)))
    logging.info("Using backbone: %s", args.backbone, extra=NOT_SHOWN)
    if args.savecheck:
        logging.info("Saving checkpoint into: %s", run_name(args, model))


def train_or_find(argv: list[str], model: Entry | None = None, signals: StopSignals | None = None) -> tuple[Path, bool]:
    """The directory of the run that a command line describes, and whether it was finished before."""
    if model is None and not under_test() and (finished := finished_run(argv)) is not None:
        return finished, True
    args = parse.parse_args(argv, model)
    # A few steps are made to see them made, not for their results.
    args.overwrite = args.overwrite or (not args.resume and (args.debug_mode or under_test()))
    # Imported here, because `--help` and a wrong flag need neither torch nor the two seconds that it takes to load.
    from utils.run.directory import RunDirectory

    directory = RunDirectory(args)
    if not args.overwrite and directory.finished() is not None:
        return directory.path, True
    from utils.training import train

    built = initialize(args)
    say(f"Run directory: {directory.path}" + (f" (seed {args.seed} was drawn)" if args.seed_was_drawn else ""))
    train(*built, signals=signals)
    return directory.path, False


def run(model: str | type | None = None, *unnamed: object, **flags: Any) -> Result:
    """In Python: `run(model="dgc_er", dataset="seq-embeddings", buffer_size=100)`, described in docs/python.md.

    The flags are the command line's. A model may be a class, too. Without a seed it is 0, so that the same call finds
    its finished run, or resumes one that was interrupted.
    """
    from utils.cli.from_python import command_line
    from utils.run.in_python import patient_signals, plain_errors
    from utils.run.result import Result

    with plain_errors():
        argv, given = command_line(model, flags, unnamed)
        directory, finished = train_or_find(argv, given, patient_signals())
        if finished:
            say(f"This run is finished ({directory}). overwrite=True runs it again, another seed makes a new one.")
        return Result(directory)


def main(argv: list[str] | None = None) -> None:
    """The command line; exit codes: 0 done, 1 failed, 2 wrong usage, 128 + n stopped by signal n and resumable."""
    open_standard_streams()
    if isinstance(sys.stdout, TextIOWrapper):  # in a notebook it is something else
        sys.stdout.reconfigure(errors="backslashreplace")  # paths may be no valid UTF-8
    show_messages()
    with one_line_failures("stopped outside training; what was saved is kept"):  # later Ctrl-C stops at a step boundary
        directory, finished = train_or_find(sys.argv[1:] if argv is None else argv)
        from utils.run.final_report import final_report

        say(final_report(directory))
        if finished:
            say(f"This run is finished ({directory}). --overwrite 1 runs it again, another --seed makes a new one.")


if __name__ == "__main__":
    if under_test():
        say("Running Mammoth!")  # its tests look for that where it is run as a script
    main()
