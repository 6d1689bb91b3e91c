"""The command line of reproduce.py: choose runs, run them, follow their progress, tabulate the results.

python reproduce.py list
python reproduce.py plan faia --profile smoke
python reproduce.py run faia --profile smoke --jobs 2
python reproduce.py status faia --profile smoke
python reproduce.py table faia --profile smoke
python reproduce.py report all --profile smoke --output DIR
python reproduce.py dashboard faia --profile smoke --wandb_project NAME
python reproduce.py run --grid FILE.yaml
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.cells import Expansion, conditions, distinct_runs, expand, with_wandb_labels
from experiments.grid import Grid, parse_metrics, parse_seeds, read_grid, selection
from experiments.results.records import Record
from experiments.running.slurm.sbatch import add_flags, check_flags
from experiments.tables import load_table, profile_names, read_table, table_names
from utils.args import ArgumentParser, number
from utils.cli.checks import require_device
from utils.cli.console import one_line_failures, open_standard_streams
from utils.errors import UsageError
from utils.status import say

PLACES = ("base_path", "results_path")
CHOICE = ("tables", "profile", "grid", "rows", "columns", "seeds", "known")


def parser() -> ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    top = ArgumentParser(prog="reproduce.py", description=__doc__, formatter_class=formatter)
    commands = top.add_subparsers(dest="command", metavar="COMMAND")  # `main` says which there are if it is missing
    commands.add_parser("list", help="the tables, and what they consist of")
    plan = commands.add_parser("plan", help="number of runs, what is done, time and disk of the rest")
    run = commands.add_parser("run", help="run what is not done yet; the same command continues it")
    status = commands.add_parser("status", help="what is done, running, failed and waiting")
    table = commands.add_parser("table", help="mean ± standard error over seeds, as Markdown")
    report = commands.add_parser("report", help="a page for browsers, Markdown, LaTeX and figures of all results")
    dashboard = commands.add_parser("dashboard", help="lay out a workspace and a report about runs in wandb")
    for command in (plan, run, status, table, report, dashboard):
        _selection(command)
    for command in (plan, run):
        jobs = "runs at a time on each device (default: 1); with --engine slurm jobs at a time (default: all)"
        command.add_argument("--jobs", type=number(int, 1), help=jobs)
        command.add_argument(
            "--devices", metavar="LIST", help="cpu, or cuda:0,cuda:1 (default: all GPUs, else the CPU)"
        )
    add_flags(run)
    for command, purpose in ((run, "log to wandb"), (dashboard, "the project that has the runs")):
        command.add_argument("--wandb_project", metavar="NAME", help=f"{purpose}; or the environment's WANDB_PROJECT")
        command.add_argument("--wandb_entity", metavar="NAME", help="entity; or the environment's WANDB_ENTITY")
    plan.add_argument("--no_probe", action="store_true", help="do not measure kinds of runs without a finished one")
    table.add_argument("--metrics", nargs="+", metavar="NAME", help="instead of the table's own, such as FAIA FF T1")
    table.add_argument("--output", type=_folder, metavar="DIR", help="write results.json and results.csv there")
    report.add_argument("--output", type=_folder, metavar="DIR", required=True, help="write the report there")
    report.add_argument("--from", dest="stored", type=Path, metavar="FILE", help="a results.json instead of runs")
    return top


def _selection(command: ArgumentParser) -> None:
    """What to work on, and where it is."""
    add = command.add_argument
    add("tables", nargs="*", metavar="TABLE", help="names from `list`, or all")
    add("--profile", choices=profile_names(), help="scale: paper (GPUs), small (hours of CPU) or smoke (minutes)")
    add("--grid", type=Path, metavar="FILE", help="a grid of your own instead of tables")
    add("--rows", nargs="+", metavar="ROW", help="only these rows")
    add("--columns", nargs="+", metavar="COLUMN", help="only columns with this name or part of it, such as S-CIFAR100")
    seeds = "number of seeds, or a list such as 0,3,5 (3, is seed 3 alone), instead of the profile's or grid's"
    add("--seeds", type=_seeds, metavar="SEEDS", help=seeds)
    add("--base_path", metavar="DIR", help="root of datasets and results (default: data/ of the project)")
    add("--results_path", metavar="DIR", help="where run directories go, relative to --base_path")
    known = "results.json files that `table --output` wrote, here or elsewhere: their runs are done, and shown"
    add("--known", nargs="+", type=Path, default=[], metavar="FILE", help=known)


def _folder(text: str) -> Path:
    if Path(text).is_file():
        raise UsageError(f"--output {text} is a file, not a folder; give a folder")
    return Path(text)


def _seeds(text: str) -> tuple[int, ...]:
    try:
        numbers = [int(part) for part in text.removesuffix(",").split(",")]
    except ValueError:
        raise UsageError(f"--seeds {text}: give a number of seeds, or a list such as 0,3,5") from None
    return parse_seeds(numbers if "," in text else numbers[0])


def selected(args: Namespace) -> list[Expansion]:
    """The cells that a command is about; all of them are parsed, so that errors show before anything runs."""
    flags = _given(args, (*PLACES, "wandb_project", "wandb_entity"))
    chosen = selection(grids(args), args.rows, args.columns)
    if getattr(args, "metrics", None):
        chosen = [replace(grid, metrics=parse_metrics(args.metrics)) for grid in chosen]
    return [expand(replace(grid, seeds=args.seeds or grid.seeds), flags) for grid in chosen]


def _known(args: Namespace, expansions: list[Expansion]) -> dict[str, Record]:
    from experiments.results.stored import known_runs

    return known_runs(args.known, {cell.config_hash for e in expansions for cell in e.cells})


def _results(args: Namespace, curves: bool = False) -> list[Any]:
    """The results of the chosen tables."""
    from experiments.results.collection import read_results

    expansions = selected(args)
    return read_results(expansions, curves, _known(args, expansions))


def to_run(args: Namespace) -> list[Expansion]:
    """The cells that a command is about, without those of `--known`."""
    expansions = selected(args)
    known = _known(args, expansions)
    left = [replace(e, cells=[cell for cell in e.cells if cell.config_hash not in known]) for e in expansions]
    if known:
        cells = [len(distinct_runs(cell for e in some for cell in e.cells)) for some in (expansions, left)]
        say(f"{cells[0] - cells[1]} of {cells[0]} runs are known from --known")
    return left


def _given(args: Namespace, names: Iterable[str]) -> list[str]:
    return [f"--{name}={value}" for name in names if (value := getattr(args, name, None))]


def grids(args: Namespace) -> list[Grid]:
    if args.tables and args.grid:
        raise UsageError("give tables or --grid, not both")
    if not (args.tables or args.grid):
        raise UsageError("give tables (`python reproduce.py list` shows them), or a grid of your own by --grid")
    if args.grid:
        if args.profile:
            raise UsageError("--profile is for tables; a grid says its scale itself")
        return [read_grid(args.grid)]
    if not args.profile:
        raise UsageError(f"--profile is missing: one of {', '.join(profile_names())}")
    names = [name for given in args.tables for name in (table_names() if given == "all" else [given])]
    return [load_table(name, args.profile) for name in dict.fromkeys(names)]


def _devices(given: str | None) -> list[str]:
    from experiments.running.processes import available_devices
    from utils.conf import get_device

    require_device(given, "--devices")
    if given is None:
        return available_devices()
    return [str(get_device(name, flag="--devices")) for name in given.split(",")]


def show_list(args: Namespace) -> int:
    for name in table_names():
        table = read_table(name)
        print(f"{name:16}{table['place']:10}{table['title']}")
        print(f"{'':26}{len(table['rows'])} rows × {' | '.join(table['columns'])}")
    print(f"\nprofiles: {', '.join(profile_names())}")
    return 0


def show_plan(args: Namespace) -> int:
    from experiments.running.estimates import Estimates
    from experiments.running.plan import plan, unfinished
    from experiments.running.processes import start_fork_server, threads_per_process

    expansions, devices = to_run(args), _devices(args.devices)
    cells = [cell for expansion in expansions for cell in expansion.cells]
    at_a_time = (args.jobs or 1) * len(devices)
    estimates = Estimates(cells, devices[0])
    if not args.no_probe:
        threads = threads_per_process(at_a_time)
        start_fork_server(threads, cells)
        estimates.probe(unfinished(cells), threads, devices[0], lambda line: print(line, file=sys.stderr))
    print(plan(expansions, estimates, at_a_time))
    return 0


def run(args: Namespace) -> int:
    from experiments.running.cell_files import log_file
    from experiments.running.engine import Engine
    from experiments.running.slurm.engine import require_slurm, submit

    check_flags(args)
    if args.engine == "slurm":
        require_slurm()
    expansions, devices = to_run(args), _devices(args.devices)
    for line in conditions(expansions):
        say(line)
    cells = with_wandb_labels(expansions)
    if args.engine == "slurm":
        submit(cells, args)
        return 0
    outcome = Engine(cells, devices, args.jobs or 1).run()
    for cell, reason in outcome.failed.values():
        say(f"failed: {cell.name}: {reason}\n        {log_file(cell.path)}")
    if outcome.stopped:
        say("Stopped. The same command continues.")
    elif outcome.failed:
        say(f"{len(outcome.failed)} run{'s' * (len(outcome.failed) > 1)} failed. The same command tries again.")
    return outcome.exit_code


def show_status(args: Namespace) -> int:
    from experiments.running.status import status

    print(status(to_run(args)))
    return 0


def show_table(args: Namespace) -> int:
    from experiments.report.tables import markdown
    from experiments.results.collection import write_results

    results = _results(args)
    print("\n\n".join(map(markdown, results)))
    if args.output:
        write_results(results, args.output)
    return 0


def make_report(args: Namespace) -> int:
    from experiments.report.write import write_report
    from experiments.results.stored import read_stored

    if args.stored and any(getattr(args, name) for name in CHOICE):
        raise UsageError("--from takes all that is in the file; leave out tables and the flags that select them")
    write_report(read_stored(args.stored) if args.stored else _results(args, curves=True), args.output)
    print(f"{args.output / 'index.html'}")
    return 0


def make_dashboard(args: Namespace) -> int:
    from experiments.dashboard.layout import dashboard
    from experiments.dashboard.publish import publish

    project = args.wandb_project or os.environ.get("WANDB_PROJECT")
    if not project:
        raise UsageError("--wandb_project is missing: the name of the project that the runs were logged to")
    print("\n".join(publish(dashboard(_results(args)), project, args.wandb_entity or os.environ.get("WANDB_ENTITY"))))
    return 0


COMMANDS = {
    "list": show_list,
    "plan": show_plan,
    "run": run,
    "status": show_status,
    "table": show_table,
    "report": make_report,
    "dashboard": make_dashboard,
}


def main(argv: list[str] | None = None) -> None:
    """Exit codes: 0 done, 1 some runs failed, 2 wrong usage, 128 + n stopped by signal n."""
    open_standard_streams()
    logging.basicConfig(level=logging.ERROR)  # warnings about a run are in its log
    with one_line_failures():
        args = parser().parse_args(argv)
        if args.command is None:
            raise UsageError(f"a command is missing: one of {', '.join(COMMANDS)}; --help says what they do")
        sys.exit(COMMANDS[args.command](args))
