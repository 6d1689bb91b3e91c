"""The flags of `reproduce.py run --engine slurm`, and the options that `sbatch` gets."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from typing import Any

from utils.args import ArgumentParser, number
from utils.cli.registry import ROOT
from utils.errors import UsageError

SIGNAL_SECONDS = 120  # before the limit: a run saves at the next step boundary, after an evaluation at the latest
LEAST_MINUTES = 5  # the signal may come a minute early; a job that gets it at once would requeue itself for ever
FLAGS = ("partition", "time", "array_jobs", "sbatch")
OPTION = re.compile(r"([a-z][a-z0-9-]*)(?:=(.*))?")
# What the job array relies on.
OWN_OPTIONS = (
    "array chdir error job-name no-requeue nodes ntasks ntasks-per-node open-mode output partition requeue signal "
    "time wait wrap"
).split()


def add_flags(command: ArgumentParser) -> None:
    add = command.add_argument
    add("--engine", choices=["local", "slurm"], default="local", help="slurm: submit the runs as a job array")
    add("--partition", metavar="NAME", help="slurm: partition of the jobs (default: the cluster's)")
    add("--time", type=_minutes, help="slurm: limit of a job, in minutes, or as 4:00:00 or 1-12")
    add("--array_jobs", type=number(int, 1), help="slurm: number of jobs that share the runs (default: one each)")
    add("--sbatch", nargs="+", metavar="NAME=VALUE", type=_option, help="slurm: further options of sbatch")


def check_flags(args: Namespace) -> None:
    """Flags of the other engine are refused: whoever gives one expects an effect."""
    if args.engine == "local":
        given = [name for name in FLAGS if getattr(args, name) is not None]
        if given:
            raise UsageError(f"--{given[0]} is for --engine slurm")
    elif args.devices is not None:
        raise UsageError("--devices is for --engine local; a job uses what SLURM gives it (--sbatch gpus-per-node=1)")
    elif args.time is None:
        raise UsageError("--engine slurm needs --time, the limit of a job, such as 4:00:00")


def parameters(args: Namespace, n_jobs: int) -> dict[str, Any]:
    """For submitit's executor."""
    more = dict(args.sbatch or [])
    return {
        "partition": args.partition,
        "time": args.time,
        "array_parallelism": args.jobs or n_jobs,
        "signal_delay_s": SIGNAL_SECONDS,
        "stderr_to_stdout": True,
        # The job starts where the command was given, which need not be our folder.
        "setup": [f"export PYTHONPATH={shlex.quote(str(ROOT))}${{PYTHONPATH:+:$PYTHONPATH}} PYTHONSAFEPATH=1"],
        # From version 22.05 on, srun does not ask what sbatch was told about processors.
        "srun_args": [f"--cpus-per-task={more['cpus-per-task']}"] if "cpus-per-task" in more else [],
        "additional_parameters": {"requeue": True} | more,
    }


def _minutes(text: str) -> int:
    """SLURM's notation: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+(?::\d+){0,2})", text)
    if match is None:
        raise UsageError(f"--time {text}: give minutes, or hours:minutes:seconds, or days-hours")
    parts = [int(part) for part in match[2].split(":")]
    if match[1] is not None:
        parts = [24 * int(match[1]) + parts[0], *parts[1:], 0, 0][:3]
    elif len(parts) < 3:
        parts = [0, *parts, 0][:3]
    minutes = 60 * parts[0] + parts[1] + (parts[2] > 0)
    if minutes < LEAST_MINUTES:
        raise UsageError(
            f"--time {text}: at least {LEAST_MINUTES} minutes; jobs save {SIGNAL_SECONDS} s before the end"
        )
    return minutes


def _option(text: str) -> tuple[str, str | bool]:
    """Without a value it is a switch."""
    match = OPTION.fullmatch(text)
    if match is None:
        raise UsageError(f"--sbatch {text}: give NAME=VALUE with the long name of an option of sbatch, such as mem=16G")
    if match[1] in OWN_OPTIONS:
        raise UsageError(f"--sbatch {text}: is not free; see --partition, --time, --jobs and --array_jobs")
    return match[1], True if match[2] is None else match[2]
