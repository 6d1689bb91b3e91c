"""`python main.py --model er --dataset seq-cifar100 --buffer_size 500`: parse → build → train."""

from __future__ import annotations

import logging
import sys
from argparse import Namespace
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from utils.cli.console import one_line_failures, open_standard_streams
from utils.cli.known_command import finished_run
from utils.cli.parse import parse_args
from utils.status import say

__all__ = ["initialize", "main", "parse_args"]


def initialize(args: Namespace) -> tuple[Any, Any, Namespace]:
    """Build the dataset and the model that `args` describe, on their device."""
    from backbone import get_backbone
    from datasets import get_dataset
    from models import get_model
    from utils.conf import (
        allow_waiting_without_cuda,
        base_path,
        get_checkpoint_path,
        get_device,
        set_random_seed,
        use_deterministic_kernels,
    )
    from utils.resume.files import require_writable
    from utils.run.environment import git_commit
    from utils.run.precision import optimise

    args.device = get_device(args.device)
    args.conf_git_hash = git_commit()  # for models that read it
    base_path(args.base_path)  # for code that asks without `args`
    checkpoints = get_checkpoint_path(args.checkpoint_path)
    if args.savecheck:
        require_writable(Path(checkpoints), "--checkpoint_path")
    allow_waiting_without_cuda()
    set_random_seed(args.seed)
    if args.deterministic:
        use_deterministic_kernels()
    dataset = get_dataset(args)
    dataset.prepare()
    net = get_backbone(args).to(args.device)
    optimise(net, args.device, args.code_optimization)
    model = get_model(args, net, dataset.get_loss(), dataset.get_transform(), dataset)
    model.net.to(args.device)  # a part that the model's constructor has replaced
    return model, dataset, args


def run(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    if (finished := finished_run(argv)) is not None:
        show_finished(finished)
        return
    args = parse_args(argv)
    # Imported here, because `--help` and a wrong flag need neither torch nor the two seconds that it takes to load.
    from utils.run.directory import RunDirectory

    directory = RunDirectory(args)
    if not args.overwrite and directory.finished() is not None:
        show_finished(directory.path)
        return
    from utils.run.final_report import final_report
    from utils.training import train

    built = initialize(args)
    say(f"Run directory: {directory.path}" + (f" (seed {args.seed} was drawn)" if args.seed_was_drawn else ""))
    train(*built)
    say(final_report(directory.path))


def show_finished(directory: Path) -> None:
    from utils.run.final_report import final_report

    say(final_report(directory))
    say(f"This run is finished ({directory}). --overwrite 1 runs it again, another --seed makes a new one.")


def main(argv: list[str] | None = None) -> None:
    """The command line; exit codes: 0 done, 1 failed, 2 wrong usage, 128 + n stopped by signal n and resumable."""
    open_standard_streams()
    if isinstance(sys.stdout, TextIOWrapper):  # in a notebook it is something else
        sys.stdout.reconfigure(errors="backslashreplace")  # paths may be no valid UTF-8
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s", stream=sys.stderr)
    with one_line_failures():  # Ctrl-C is one before training; from then on it stops at a step boundary
        run(argv)


if __name__ == "__main__":
    main()
