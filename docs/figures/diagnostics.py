"""Curves of what `--dgc_diagnostics` measured: relative error and cosine of replay's gradients, and α*.

python -m docs.figures.diagnostics RUN [RUN …] --output PNG

Each RUN is the directory of a run, and becomes a column.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import yaml

ESTIMATES = {"batch": "one replay batch", "buffer": "whole buffer", "calibrated": "calibrated"}
COLOURS = {"batch": "#bbbbbb", "buffer": "#0072b2", "calibrated": "#d55e00", "alpha_star": "#009e73"}
LEAST_ERROR = 0.05  # on the axis: a correction that is exact at a task's beginning is off it
Event = dict[str, Any]


def events_of(file: Path) -> list[Event]:
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise SystemExit(f"cannot read {file}: {error.strerror}; give the directory of a run") from None
    except ValueError as error:
        raise SystemExit(f"{file} is damaged ({error}); run it again") from None


def read(run: Path) -> tuple[list[list[Event]], list[int]]:
    """The measurements of each task that has any, with `at`, the run's step; and the steps at which tasks begin."""
    tasks: dict[int, list[Event]] = {}
    starts = [0]
    for event in events_of(run / "metrics.jsonl"):
        if event["event"] == "diagnostics":
            tasks.setdefault(event["task"], []).append(event | {"at": starts[-1] + event["step"]})
        elif event["event"] == "task_end":
            starts.append(starts[-1] + event["step"])
    return list(tasks.values()), starts[1:-1]


def title(run: Path) -> str:
    args = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["args"]
    parts = [args["model"], args.get("dgc_estimator"), f"buffer {args['buffer_size']}", args.get("buffer_fill")]
    if args.get("dgc_alpha") is not None:
        parts.insert(2, f"α = {args['dgc_alpha']:g}")
    if args.get("dgc_estimator") in ("sampled", "released"):  # `closed` has no stages
        parts.insert(3, f"m = {args['dgc_m']}")
    if args.get("dgc_estimator") == "sampled" and "dgc_view" in args:  # views are never compared; old runs know none
        parts.append(f"view {args['dgc_view'] or 'same'}")
    return f"{args['dataset']}, seed {args['seed']}\n" + ", ".join(str(part) for part in parts if part)


def curve(axes: Any, tasks: list[list[Event]], key: str, colour: str, label: str) -> None:
    """One line per task, because θ, buffer and past all change in between; a gap where a value is undefined."""
    for i, events in enumerate(events for events in tasks if key in events[0]):
        values = [math.nan if event.get(key) is None else event[key] for event in events]
        axes.plot([e["at"] for e in events], values, ".-", color=colour, label=label if i == 0 else None, ms=4, lw=1)


def draw(runs: list[Path], output: Path) -> None:
    found = [read(run) for run in runs]
    empty = [str(run) for run, (tasks, _) in zip(runs, found, strict=True) if not tasks]
    if empty:
        raise SystemExit(
            f"no diagnostics in {', '.join(empty)}: run it with --dgc_diagnostics K, over two tasks at least"
        )
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = 2 + any("alpha_star" in events[0] for tasks, _ in found for events in tasks)
    figure, grid = plt.subplots(
        rows, len(runs), figsize=(5.5 * len(runs), 2.6 * rows), sharex=True, sharey="row", squeeze=False
    )
    for column, (run, (tasks, starts)) in enumerate(zip(runs, found, strict=True)):
        errors, cosines = grid[0][column], grid[1][column]
        for name, label in ESTIMATES.items():
            curve(errors, tasks, f"{name}_error", COLOURS[name], label)
            curve(cosines, tasks, f"{name}_cosine", COLOURS[name], label)
        if rows == 3 and "alpha_star" in tasks[0][0]:
            curve(grid[2][column], tasks, "alpha_star", COLOURS["alpha_star"], "α*")
            grid[2][column].axhline(1, color="black", lw=0.5)
        elif rows == 3:
            grid[2][column].text(0.5, 0.5, "no correction", transform=grid[2][column].transAxes, ha="center")
        for axes in grid[:, column]:
            for start in starts:
                axes.axvline(start, color="#dddddd", zorder=0)
        errors.set_title(title(run), fontsize=9)
        errors.axhline(1, color="black", lw=0.5)
        errors.legend(fontsize=7, framealpha=0.6)
        grid[-1][column].set_xlabel("step")
    for axes, label in zip(grid[:, 0], ("relative error", "cosine", "α*"), strict=False):
        axes.set_ylabel(label)
    grid[0][0].set_yscale("log")
    grid[0][0].set_ylim(bottom=LEAST_ERROR)
    figure.tight_layout()
    figure.savefig(output, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--output", type=Path, default=Path("diagnostics.png"), metavar="PNG")
    given = parser.parse_args()
    draw(given.runs, given.output)


if __name__ == "__main__":
    main()
