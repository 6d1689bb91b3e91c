"""The ladder: what each rung changes, as the difference to the row that it is compared with, with its 95 % interval.

    python -m docs.figures.ladder docs/results/small/ladder/results.json --output docs/results/small/ladder.png

A grid whose rows are rungs, each `against` the row that it makes one change to; a panel for each column and metric.
A rung against another one that is off the main path stands below that one, indented, and starts where it ended, so that
what it regains of a loss does not look like a gain. Rungs and columns without a single run are left out.
"""

from __future__ import annotations

import argparse
import textwrap
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

from experiments.report.styles import BLUE, GREY, INK, VERMILION, pyplot
from experiments.report.tables import BETTER, UNCLEAR, UNJUDGED, WORSE, bases, outcome
from experiments.results.collection import NOT_RUN, Results
from experiments.results.records import LESS_IS_BETTER
from experiments.results.statistics import Difference
from experiments.results.stored import read_stored

FARTHEST = {"FAIA": 8.0, "FF": 16.0}  # what is shown, and points; what lies beyond is an arrow, to tell others apart
MARGIN = 1.2  # of the axis, for the arrows
ONE_SEED = "one seed"
COLOURS = {BETTER: BLUE[0], WORSE: VERMILION[0], UNCLEAR: GREY[0], UNJUDGED: GREY[0], ONE_SEED: GREY[0]}
LEGEND = {
    BETTER: "Blue: better.",
    WORSE: "Orange: worse.",
    UNCLEAR: "Grey: the interval contains 0.",
    UNJUDGED: "Grey in FF, too: less forgetting, but FAIA or FAA is worse.",
    ONE_SEED: "Hollow: one seed.",
}


def verdict(found: Results, row: str, column: str, metric: str) -> str:
    """What the interval of a difference says of the direction."""
    difference = found.difference(row, column, metric)
    if difference is None or difference.summary.mean is None:
        return NOT_RUN
    return ONE_SEED if difference.low is None else outcome(found, row, column, metric)


def main_path(against: dict[str, str]) -> set[str]:
    """In each tree of rungs the row that most are compared with (of several the last), and those before it."""
    lines = {row: _line(row, against) for row in {*against, *against.values()}}
    path: set[str] = set()
    for root in (row for row in lines if row not in against):
        users = Counter(base for row, base in against.items() if lines[row][-1] == root)
        path |= {*lines[max(users, key=lambda base: (users[base], len(lines[base])))]}
    return path


def _line(row: str, against: dict[str, str]) -> list[str]:
    """A row, the one that it is compared with, and so on."""
    return [row, *_line(against[row], against)] if row in against else [row]


def indented(rows: list[str], against: dict[str, str]) -> dict[str, str]:
    """The rows in the order of the picture, those off the main path below what they are compared with; the base that
    each of these starts from, or nothing.
    """
    path = main_path(against)
    own = {row: base for row, base in against.items() if base in rows and base not in path}
    order: dict[str, str] = {}

    def add(row: str) -> None:
        order[row] = own.get(row, "")
        for other in (other for other in rows if own.get(other) == row):
            add(other)

    for row in rows:
        if row not in own:
            add(row)
    return order


def draw(found: Results, output: Path, headline: str = "") -> None:
    plt, run = pyplot(), {(row, column) for row, column, _ in found.records}
    rows = indented([row for row in found.grid.rows if any(row == name for name, _ in run)], bases(found.grid))
    columns = [column for column in found.grid.columns if any(column == name for _, name in run)]
    panels = list(product(columns, FARTHEST))
    figure, axes = plt.subplots(
        1, len(panels), sharey=True, squeeze=False, layout="constrained",
        figsize=(3.8 + 2.1 * len(panels), 1.0 + 0.36 * len(rows)),
    )  # fmt: skip
    for panel, (column, metric) in zip(axes[0], panels, strict=True):
        _draw_panel(panel, found, rows, column, metric)
    axes[0][0].set_yticks(range(len(rows)), [_label(found, *rung) for rung in rows.items()], fontsize=7.5)
    axes[0][0].set_ylim(len(rows) - 0.4, -0.6)
    _align_left(figure, axes[0][0])
    seeds = {len(found.by_seed(row, column, "FAIA")) for row in rows for column in columns} - {0}
    count = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else str(max(seeds, default=0))
    explained = [
        f"Change in points against the row named below the rung, paired; bars: 95 % intervals over {count} seeds.",
        *["An indented rung starts where the rung above it ended: its place shows what remains."] * any(rows.values()),
        *legend(found, list(rows), panels),
        "At the right: the mean.",
    ]
    figure.suptitle(headline, fontweight="bold", x=0.01, ha="left", color=INK[0])
    words = textwrap.fill(" ".join(explained), 45 + 45 * len(panels))
    figure.supxlabel(words, fontsize=7.5, x=0.01, ha="left", color=INK[0])
    figure.savefig(output)


def legend(found: Results, rows: list[str], panels: list[tuple[str, str]]) -> list[str]:
    """It explains what is drawn, and nothing else."""
    against = indented(rows, bases(found.grid))
    told = {verdict(found, row, column, metric) for (column, metric), row in product(panels, rows)}
    beyond = any(
        abs(reached[-1]) > FARTHEST[metric]
        for (column, metric), row in product(panels, rows)
        if (reached := ends(found, against, row, column, metric))
    )
    return [words for kind, words in LEGEND.items() if kind in told] + ["Arrow: beyond the axis."] * beyond


def _align_left(figure: Any, axes: Any) -> None:
    """The rungs' names, so that an indented one is seen to be."""
    figure.draw_without_rendering()
    labels = axes.get_yticklabels()
    width = max(label.get_window_extent().width for label in labels) * 72 / figure.dpi
    axes.tick_params(axis="y", pad=width + 4)
    for label in labels:
        label.set_ha("left")


def _label(found: Results, row: str, start: str) -> str:
    against = found.grid.rows[row].against
    first, second = ("    ↳ ", " " * 9) if start else ("", "")
    return f"{first}{row}" + (f"\n{second}(against: {against})" if against else "")


def ends(found: Results, rows: dict[str, str], row: str, column: str, metric: str) -> tuple[float, float] | None:
    """Where a rung starts and where it ends."""
    difference = found.difference(row, column, metric)
    if difference is None or difference.summary.mean is None:
        return None
    before = ends(found, rows, rows[row], column, metric) if rows.get(row) else None
    start = before[-1] if before else 0.0
    return start, start + difference.summary.mean


def _draw_panel(axes: Any, found: Results, rows: dict[str, str], column: str, metric: str) -> None:
    farthest, places = FARTHEST[metric], {row: place for place, row in enumerate(rows)}
    axes.axvline(0, color=INK[0], linewidth=0.8)
    for row, place in places.items():
        _draw_own_value(axes, found, row, column, metric, place)
        difference, reached = found.difference(row, column, metric), ends(found, rows, row, column, metric)
        if difference is None or reached is None:
            continue
        if rows[row]:
            start, end = (max(-farthest, min(farthest, value)) for value in reached)
            way = [start, start, end], [places[rows[row]], place, place]
            axes.plot(*way, color=GREY[0], linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1.5)
        _draw_difference(axes, difference, reached, place, farthest, COLOURS[verdict(found, row, column, metric)])
    direction = "lower is better" if metric in LESS_IS_BETTER else "higher is better"
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


def _draw_difference(
    axes: Any, difference: Difference, reached: tuple[float, float], place: int, farthest: float, colour: str
) -> None:
    start, end = reached
    at, edge = max(-farthest, min(farthest, end)), MARGIN * farthest
    if at == end and difference.low is not None and difference.high is not None:
        interval = [max(-edge, min(edge, start + value)) for value in (difference.low, difference.high)]
        axes.plot(interval, [place, place], color=colour, linewidth=1.8, solid_capstyle="butt")
    marker = "o" if at == end else "<" if end < 0 else ">"
    filled = difference.low is not None
    axes.plot([at], [place], marker, markersize=5, color=colour, markerfacecolor=colour if filled else "white")
    axes.annotate(
        f"{end - start:+.1f}".replace("-", "−"), (at, place), (0, 4.5), textcoords="offset points", ha="center",
        fontsize=6.5, color=colour, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
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
