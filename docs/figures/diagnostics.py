"""Curves of what `--dgc_diagnostics` measured: α*, and the relative error and cosine of replay's gradients.

    python -m docs.figures.diagnostics RUN [RUN …] [--title TEXT] --output PNG

Each RUN is the directory of a run, and becomes a row.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from experiments.report.figures import draw_measured
from experiments.report.styles import GREEN, GREY, INK, pyplot
from experiments.results.records import read_curves
from utils.run.look import LINE, SOFT

PANELS = {
    "alpha_star": "α*, the best share of the correction",
    "error": "relative error of the gradient",
    "cosine": "cosine with the true gradient",
}
WIDTHS = {"alpha_star": 1.5, "error": 1.15, "cosine": 1}
PERFECT = {"alpha_star": 1, "cosine": 1}
ROUNDING = 1e-3  # of the largest error: what is 0 but for rounding does not stretch the axis
FILLED = {"task_end": "filled at task ends"}


def measured(run: Path) -> dict[str, Any]:
    found = read_curves(run / "metrics.jsonl").get("diagnostics")
    if found is None:
        raise SystemExit(f"no diagnostics in {run}: run it with --dgc_diagnostics K, over two tasks at least")
    return found


def described(run: Path) -> list[str]:
    """What tells runs apart, from the most to the least important."""
    args = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["args"]
    estimator, alpha, fill = args.get("dgc_estimator"), args.get("dgc_alpha"), args.get("buffer_fill")
    parts = [args["model"], estimator, None if alpha is None else f"α = {alpha:g}"]
    if estimator in ("sampled", "released"):  # `closed` has no stages
        parts.append(f"m = {args['dgc_m']}")
    if estimator == "sampled":  # views are never compared
        parts.append(f"view {args['dgc_view'] or 'same'}")
    parts += [args["dataset"], f"buffer {args['buffer_size']}", FILLED.get(fill, fill), f"seed {args['seed']}"]
    return [str(part) for part in parts if part]


def draw(runs: list[Path], output: Path, headline: str = "") -> None:
    found, words = [measured(run) for run in runs], [described(run) for run in runs]
    kinds = [kind for kind in PANELS if kind != "alpha_star" or any(kind in values for values in found)]
    height = (3.0 if len(runs) == 1 else 2.3 * len(runs)) + 0.8
    figure, grid = pyplot(formulas=True).subplots(
        len(runs), len(kinds), sharex=True, sharey="col", squeeze=False, figsize=(10, height), layout="constrained",
        width_ratios=[WIDTHS[kind] for kind in kinds],
    )  # fmt: skip
    for row, values, parts in zip(grid, found, words, strict=True):
        for axes, kind in zip(row, kinds, strict=True):
            _draw_panel(axes, values, kind)
        own = [part for part in parts if any(part not in other for other in words)]
        row[0].set_title(", ".join(own), loc="left", fontweight="bold")
    for axes in grid[-1]:
        axes.set_xlabel("step")
    if "alpha_star" in kinds:
        grid[0][0].set_ylim(bottom=min(-0.03, *(1.2 * s for v in found for s in v.get("alpha_star", []))))
    _limit_errors(grid[0][kinds.index("error")], found)
    _head(figure, headline, [part for part in words[0] if all(part in other for other in words)])
    entries = [dict(zip(*reversed(row[-1].get_legend_handles_labels()), strict=True)) for row in grid]
    every = {label: handle for of_row in entries for label, handle in of_row.items()}
    figure.legend(every.values(), every.keys(), loc="outside lower center", ncols=3)
    figure.savefig(output)


def _draw_panel(axes: Any, values: dict[str, Any], kind: str) -> None:
    if kind == "alpha_star" and kind not in values:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no correction", transform=axes.transAxes, ha="center", color=SOFT[0])
        return
    axes.set_ylabel(PANELS[kind])
    axes.xaxis.set_major_locator(MaxNLocator(5))
    tasks = list(dict.fromkeys(values["task"]))
    starts = [values["at"][values["task"].index(task)] for task in tasks]
    for start in starts[1:]:
        axes.axvline(start, color=LINE[0], linewidth=0.8, zorder=1)
    if kind in PERFECT:
        axes.axhline(PERFECT[kind], color=GREY[0], linewidth=0.8)
    if kind != "alpha_star":
        draw_measured(axes, values, kind)
    else:
        for task, start in zip(tasks, starts, strict=True):
            part = [i for i, of in enumerate(values["task"]) if of == task]
            at, shares = ([values[name][i] for i in part] for name in ("at", kind))
            axes.plot(at, shares, ".-", color=GREEN[0], markersize=5, linewidth=2)
            if axes.get_subplotspec().is_first_row():
                place = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
                axes.annotate(f"task {task}", (start, 0), (2, 3), **place, fontsize=7, color=SOFT[0])


def _limit_errors(axes: Any, found: list[dict[str, Any]]) -> None:
    """Logarithmic, with plain numbers: the log axis' own are powers."""
    curves = [values[name] for values in found for name in values if name.endswith("_error")]
    errors = [error for curve in curves for error in curve if error is not None]
    axes.set_yscale("log", nonpositive="mask")
    axes.set_ylim(0.8 * min(e for e in errors if e > ROUNDING * max(errors)), 1.25 * max(errors))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _head(figure: Any, headline: str, common: list[str]) -> None:
    """The headline, and below it in small letters what all runs share."""
    figure.suptitle(f"{headline}\n ", fontweight="bold", x=0.01, ha="left", color=INK[0])
    figure.text(0.01, 1 - 0.22 / figure.get_figheight(), ", ".join(common), fontsize=8, color=SOFT[0], va="top")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--title", default="", help="what the picture shows, in one line")
    parser.add_argument("--output", type=Path, default=Path("diagnostics.png"), metavar="PNG")
    given = parser.parse_args()
    draw(given.runs, given.output, given.title)


if __name__ == "__main__":
    main()
