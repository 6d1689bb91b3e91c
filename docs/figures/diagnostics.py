"""Curves of what `--dgc_diagnostics` measured: relative error and cosine of replay's gradients, and α*.

python -m docs.figures.diagnostics RUN [RUN …] --output PNG

Each RUN is the directory of a run, and becomes a column.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml

from experiments.report.figures import draw_measured
from experiments.report.styles import GREEN, GREY, pyplot
from experiments.results.records import read_curves

LEAST_ERROR = 0.05  # on the axis: a correction that is exact at a task's beginning is off it


def measured(run: Path) -> dict[str, Any]:
    found = read_curves(run / "metrics.jsonl").get("diagnostics")
    if found is None:
        raise SystemExit(f"no diagnostics in {run}: run it with --dgc_diagnostics K, over two tasks at least")
    return found


def title(run: Path) -> str:
    args = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["args"]
    parts = [args["model"], args.get("dgc_estimator"), f"buffer {args['buffer_size']}", args.get("buffer_fill")]
    if args.get("dgc_alpha") is not None:
        parts.insert(2, f"α = {args['dgc_alpha']:g}")
    if args.get("dgc_estimator") in ("sampled", "released"):  # `closed` has no stages
        parts.insert(3, f"m = {args['dgc_m']}")
    if args.get("dgc_estimator") == "sampled":  # views are never compared
        parts.append(f"view {args['dgc_view'] or 'same'}")
    return f"{args['dataset']}, seed {args['seed']}\n" + ", ".join(str(part) for part in parts if part)


def draw(runs: list[Path], output: Path) -> None:
    found = [measured(run) for run in runs]
    rows = 2 + any("alpha_star" in values for values in found)
    size = {"figsize": (3.6 * len(runs) + 0.6, 2 * rows), "layout": "constrained"}
    figure, grid = pyplot(formulas=True).subplots(rows, len(runs), sharex=True, sharey="row", squeeze=False, **size)
    for column, (run, values) in enumerate(zip(runs, found, strict=True)):
        for axes, kind in zip(grid[:, column], ("error", "cosine"), strict=False):
            draw_measured(axes, values, kind)
            axes.axhline(1, color=GREY[0], linewidth=0.6)
        if "alpha_star" in values:
            grid[2][column].plot(values["at"], values["alpha_star"], ".-", color=GREEN[0], markersize=3)
        elif rows == 3:
            grid[2][column].text(0.5, 0.5, "no correction", transform=grid[2][column].transAxes, ha="center")
        grid[0][column].set_title(title(run))
        grid[-1][column].set_xlabel("step")
    for axes, label in zip(grid[:, 0], ("relative error", "cosine", "α*"), strict=False):
        axes.set_ylabel(label)
    grid[0][0].set_yscale("log")
    grid[0][0].set_ylim(bottom=LEAST_ERROR)
    handles = max((axes.get_legend_handles_labels() for axes in grid[0]), key=lambda found: len(found[1]))
    figure.legend(*handles, loc="outside upper center", ncols=3)
    figure.savefig(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--output", type=Path, default=Path("diagnostics.png"), metavar="PNG")
    given = parser.parse_args()
    draw(given.runs, given.output)


if __name__ == "__main__":
    main()
