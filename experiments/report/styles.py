"""One look for all figures, those of docs/figures, too: colours that the colour-blind tell apart, names at the lines.

The methods of interest, those of pairs, are in colour, a base dashed and what is compared with it solid; the others are
grey.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from experiments.results.collection import Results
from utils.errors import UserError
from utils.run.look import BLUE, GREEN, GREY, INK, LOOK, PALETTE, PURPLE, VERMILION

OWN = {"ER": BLUE, "DER++": VERMILION, "X-DER": GREEN, "Dynamic ER": PURPLE}  # in every report
FRAMES = {"SGD": (1, 2), "Joint": (8, 2, 1, 2)}  # of every table, and their dashes
DASHES = ((4, 2), (8, 3), (9, 3, 2, 3))
CALIBRATED = "DGC-"
NAME_SIZE = 7.5  # points
LEADER = {"arrowstyle": "-", "lw": 0.4, "color": GREY[0], "shrinkA": 1, "shrinkB": 1, "relpos": (0, 0.5)}


@dataclass(frozen=True)
class Style:
    light: str  # its colour on white
    dark: str  # on black
    dash: tuple[int, ...] | None
    width: float
    of_interest: bool


def styles(results: Iterable[Results]) -> dict[str, Style]:
    """The look of every row of all tables, by name."""
    rows, bases = _rows(results)
    interesting = [row for row in rows if row in bases] or [row for row in rows if row not in FRAMES]
    found: dict[str, Style] = {}
    free = [colour for colour in PALETTE if colour not in {OWN.get(_family(row)) for row in interesting}]
    for number, row in enumerate(interesting):
        base = bases.get(row, "")
        colour = OWN.get(_family(row))
        if colour is None or any(style.light == colour[0] for style in found.values()):
            colour = free.pop(0) if free else PALETTE[number % len(PALETTE)]
        dash = None if number < len(PALETTE) else DASHES[number // len(PALETTE) % len(DASHES)]
        found[row] = Style(*colour, dash, 2.2, True)
        if base in rows and base not in bases:
            found.setdefault(base, Style(*colour, DASHES[0], 1.6, True))
    for row in rows:
        frame = FRAMES.get(row)
        found.setdefault(row, Style(*(INK if frame else GREY), frame, 1.2, False))
    return {row: found[row] for row in rows}


def _rows(results: Iterable[Results]) -> tuple[list[str], dict[str, str]]:
    """All rows, and for each that is compared with another that other one."""
    rows: dict[str, None] = {}
    bases: dict[str, str] = {}
    for result in results:
        for row, spec in result.grid.rows.items():
            rows[row] = None
            if spec.against is not None:
                bases.setdefault(row, spec.against)
    return list(rows), bases


def _family(row: str) -> str:
    """`ER` of `DGC-ER, closed form`."""
    return row.removeprefix(CALIBRATED).partition(", ")[0]


def pyplot(formulas: bool = False) -> Any:
    """matplotlib's, with this look; with formulas where no name comes from a file."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("figures need matplotlib, which is missing: pip install matplotlib") from None
    matplotlib.use("Agg")
    matplotlib.rcParams.update(LOOK | {"text.parse_math": formulas})  # else a $ is a $
    from matplotlib import pyplot

    pyplot.close("all")  # the figure before is saved
    return pyplot


def name_lines(figure: Any) -> None:
    """Names at the right ends of all lines that have one, instead of a legend; moved apart where they would overlap.

    The last thing to do: it depends on the limits of the axes.
    """
    figure.draw_without_rendering()  # lays it out: how high are the axes?
    for axes in figure.axes:
        ends = [end for line in axes.get_lines() if (end := _end(axes, line)) is not None]
        ends.sort(key=lambda end: end[0])
        low, high = (72 / figure.dpi * edge for edge in (axes.bbox.y0, axes.bbox.y1))
        for (at, value, line), place in zip(ends, spread([at for at, _, _ in ends], low, high), strict=True):
            moved = abs(place - at) > NAME_SIZE / 2
            axes.annotate(
                line.get_label(),
                (1, value),
                (9, place - at),
                xycoords=axes.get_yaxis_transform(),
                textcoords="offset points",
                va="center",
                fontsize=NAME_SIZE,
                color=line.get_color(),
                annotation_clip=False,
                arrowprops={
                    "arrowstyle": "-",
                    "lw": 0.4,
                    "color": GREY[0],
                    "shrinkA": 1,
                    "shrinkB": 1,
                    "relpos": (0, 0.5),
                }
                if moved
                else None,
            )


def _end(axes: Any, line: Any) -> tuple[float, float, Any] | None:
    """Where a line ends, in points and in values; None if it has no name or no value."""
    values = [float(value) for value in line.get_ydata() if value == value]
    if not values or line.get_label().startswith("_child"):  # matplotlib's own names
        return None
    return 72 / axes.figure.dpi * float(axes.transData.transform((0, values[-1]))[1]), values[-1], line


def spread(places: list[float], low: float, high: float, gap: float = 1.3 * NAME_SIZE) -> list[float]:
    """Rising places moved apart by at least the gap, as little as possible, between the limits if there is room."""
    groups: list[tuple[float, int]] = []  # neighbours that touch: sum of their places less their gaps, and number
    for i, place in enumerate(places):
        total, count = place - i * gap, 1
        while groups and groups[-1][0] / groups[-1][1] > total / count:
            other = groups.pop()
            total, count = total + other[0], count + other[1]
        groups.append((total, count))
    starts = [total / count for total, count in groups for _ in range(count)]
    highest = high - (len(places) - 1) * gap
    return [min(max(start, low), highest) + i * gap for i, start in enumerate(starts)]
