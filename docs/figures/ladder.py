"""The ladder: what each rung changes, as the difference to the row that it is compared with, with its 95 % interval.

    python -m docs.figures.ladder docs/results/small/ladder/results.json --output docs/results/small/ladder.png

A grid whose rows are rungs, each `against` the row that it makes one change to; a panel for each column and metric.
Rungs and columns without a single run are left out.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import Any

from experiments.report.styles import BLUE, GREY, INK, VERMILION, pyplot
from experiments.results.collection import NOT_RUN, Results
from experiments.results.statistics import Difference
from experiments.results.stored import read_stored

BETTER = {"FAIA": 1, "FF": -1}  # what is shown, and which direction is better
FARTHEST = {"FAIA": 8.0, "FF": 16.0}  # points; what lies beyond is an arrow, so that others can be told apart
MARGIN = 1.2  # of the axis, for the arrows


def verdict(difference: Difference, better: int) -> str:
    """Whether the interval of a difference leaves the direction open."""
    if difference.summary.mean is None:
        return NOT_RUN
    if difference.low is None or difference.high is None:
        return "one seed"
    if difference.low <= 0 <= difference.high:
        return "open"
    return "better" if difference.summary.mean * better > 0 else "worse"


COLOURS = {"better": BLUE[0], "worse": VERMILION[0], "open": GREY[0], "one seed": GREY[0], NOT_RUN: GREY[0]}

LEGEND = {
    "better": "Blue: better.",
    "worse": "Orange: worse.",
    "open": "Grey: undecided.",
    "one seed": "Hollow: one seed.",
}


def draw(found: Results, output: Path, headline: str = "") -> None:
    plt, run = pyplot(), {(row, column) for row, column, _ in found.records}
    rows = [row for row in found.grid.rows if any(row == name for name, _ in run)]
    columns = [column for column in found.grid.columns if any(column == name for _, name in run)]
    panels = [(column, metric) for column in columns for metric in BETTER]
    figure, axes = plt.subplots(
        1, len(panels), sharey=True, squeeze=False, layout="constrained",
        figsize=(3.6 + 2.1 * len(panels), 0.9 + 0.36 * len(rows)),
    )  # fmt: skip
    for panel, (column, metric) in zip(axes[0], panels, strict=True):
        _draw_panel(panel, found, rows, column, metric)
    axes[0][0].set_yticks(range(len(rows)), [_label(found, row) for row in rows], fontsize=7.5)
    axes[0][0].set_ylim(len(rows) - 0.4, -0.6)
    seeds = {len(found.by_seed(row, column, "FAIA")) for row in rows for column in columns} - {0}
    count = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else str(max(seeds, default=0))
    explained = (
        f"Change in points against the row named below the rung; bars: 95 % intervals over {count} seeds, paired.\n"
        f"{' '.join(legend(found, rows, panels))} At the right: the mean."
    )
    figure.suptitle(headline, fontweight="bold", x=0.01, ha="left", color=INK[0])
    figure.supxlabel(explained, fontsize=7.5, x=0.01, ha="left", color=INK[0])
    figure.savefig(output)


def legend(found: Results, rows: list[str], panels: list[tuple[str, str]]) -> list[str]:
    """Of what is drawn, and of nothing else."""
    told, beyond = set(), False
    for (column, metric), row in product(panels, rows):
        difference = found.difference(row, column, metric)
        if difference is not None and (mean := difference.summary.mean) is not None:
            told.add(verdict(difference, BETTER[metric]))
            beyond |= abs(mean) > FARTHEST[metric]
    return [words for kind, words in LEGEND.items() if kind in told] + ["Arrow: beyond the axis."] * beyond


def _label(found: Results, row: str) -> str:
    against = found.grid.rows[row].against
    return f"{row}\n(against: {against})" if against else row


def _draw_panel(axes: Any, found: Results, rows: list[str], column: str, metric: str) -> None:
    better, farthest = BETTER[metric], FARTHEST[metric]
    axes.axvline(0, color=INK[0], linewidth=0.8)
    for place, row in enumerate(rows):
        _draw_own_value(axes, found, row, column, metric, place)
        difference = found.difference(row, column, metric)
        if difference is not None and difference.summary.mean is not None:
            _draw_difference(axes, difference, place, farthest, COLOURS[verdict(difference, better)])
    direction = "higher is better" if better > 0 else "lower is better"
    axes.set_title(f"{metric} ({direction})" + (f"\n{column} images" if column else ""))
    axes.set_xlim(-MARGIN * farthest, MARGIN * farthest)
    axes.grid(axis="x")
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def _draw_own_value(axes: Any, found: Results, row: str, column: str, metric: str, place: int) -> None:
    mean = found.summary(row, column, metric).mean
    gap = found.gap(row, column, metric)
    text = gap if gap is not None else f"{mean:.1f}"
    kind = {"color": GREY[0], "style": "italic"} if gap is not None else {"color": INK[0]}
    at = axes.get_yaxis_transform()
    axes.text(1.02, place, text, transform=at, va="center", fontsize=7, clip_on=False, **kind)


def _draw_difference(axes: Any, difference: Difference, place: int, farthest: float, colour: str) -> None:
    mean = difference.summary.mean
    assert mean is not None
    at = max(-farthest, min(farthest, mean))
    if at == mean and difference.low is not None and difference.high is not None:
        edge = MARGIN * farthest
        ends = [max(-edge, min(edge, end)) for end in (difference.low, difference.high)]
        axes.plot(ends, [place, place], color=colour, linewidth=1.8, solid_capstyle="butt")
    marker = "o" if at == mean else "<" if mean < 0 else ">"
    filled = difference.low is not None
    axes.plot([at], [place], marker, markersize=5, color=colour, markerfacecolor=colour if filled else "white")
    axes.annotate(
        f"{mean:+.1f}".replace("-", "−"), (at, place), (0, 4.5), textcoords="offset points", ha="center", fontsize=6.5,
        color=colour, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, metavar="RESULTS", help="a results.json of one grid")
    parser.add_argument("--output", type=Path, default=Path("ladder.png"), metavar="PNG")
    given = parser.parse_args()
    (found,) = read_stored(given.results)
    draw(found, given.output)


if __name__ == "__main__":
    main()
