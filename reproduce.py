"""`python reproduce.py run --grid FILE.yaml`: run a grid of experiments, and show what came out."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from experiments.grid import Cell, Grid, cells_of, parse_seeds, read_grid
from utils.args import ArgumentParser, number
from utils.errors import UsageError, UserError
from utils.status import discard_stdout, say


def parser() -> ArgumentParser:
    top = ArgumentParser(prog="reproduce.py", description=__doc__.partition("\n")[0])
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run what is not done yet; the same command goes on")
    table = commands.add_parser("table", help="print tables of mean ± standard error")
    for command in (run, table):
        _selection(command)
    run.add_argument("--jobs", type=number(int, 1), default=1, help="runs at a time on each device")
    run.add_argument("--devices", metavar="LIST", help="cpu, or cuda:0,cuda:1; default: all GPUs, else the CPU")
    table.add_argument("--output", type=Path, metavar="DIR", help="also write results.json and results.md there")
    return top


def _selection(command: ArgumentParser) -> None:
    """What to work on, and where it is."""
    command.add_argument("--grid", type=Path, required=True, metavar="FILE", help="YAML file of a grid")
    command.add_argument("--seeds", type=_seeds, help="number of seeds, or a list (0,3,5), instead of the grid's own")
    command.add_argument("--base_path", metavar="DIR", help="root of datasets and results (default: data/ here)")
    command.add_argument("--results_path", metavar="DIR", help="where run directories go, relative to --base_path")


def _seeds(text: str) -> tuple[int, ...]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--seeds {text} is neither a number of seeds nor a list such as 0,3,5") from None
    return parse_seeds(numbers if "," in text else numbers[0])


def selected(args: Namespace) -> tuple[Grid, list[Cell]]:
    grid = read_grid(args.grid)
    if args.seeds:
        from dataclasses import replace

        grid = replace(grid, seeds=args.seeds)
    places = [f"--{name}={value}" for name in ("base_path", "results_path") if (value := getattr(args, name))]
    return grid, cells_of(grid, places)


def run(args: Namespace) -> int:
    from experiments.engine import Engine
    from experiments.failures import log_file

    _, cells = selected(args)
    outcome = Engine(cells, _devices(args.devices), args.jobs).run()
    for cell, reason in outcome.failed.values():
        say(f"failed: {cell.name}: {reason}\n        {log_file(cell.path)}")
    if outcome.stopped:
        say("Stopped; the same command goes on.")
    return outcome.exit_code


def _devices(given: str | None) -> list[str]:
    import torch

    from utils.conf import get_device

    if given is None:
        return [f"cuda:{i}" for i in range(torch.cuda.device_count())] or [str(get_device())]
    return given.split(",")


def table(args: Namespace) -> int:
    from experiments.results import markdown, read_results, write_results

    grid, cells = selected(args)
    results = read_results(grid, cells)
    say(markdown(results))
    if args.output:
        write_results(results, args.output)
    return 0


def main(argv: list[str] | None = None) -> None:
    """Exit codes: 0 done, 1 some runs failed, 2 wrong usage, 128 + n stopped by signal n."""
    try:
        args = parser().parse_args(argv)
        sys.exit({"run": run, "table": table}[args.command](args))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        discard_stdout()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
