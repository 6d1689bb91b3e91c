"""One look for all figures, docs/figures included: colours that the colour-blind can tell apart, names at the lines.

Pairs are in colour, rows that are bases only dashed; other methods are grey.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.results.collection import Results
from utils.errors import UserError
from utils.run.look import BLUE, GREEN, GREY, INK, LOOK, PALETTE, PURPLE, VERMILION

OWN = {"ER": BLUE, "DER++": VERMILION, "X-DER": GREEN, "Dynamic ER": PURPLE}  # the same in every report
FRAMES = {"SGD": (1, 2), "Joint": (8, 2, 1, 2)}  # the bounds in every table, and their dashes
BASE_DASH = (4, 2)
DASHES = ((14, 3), (8, 3), (9, 3, 2, 3))  # of rows beyond the colours
CALIBRATED = "DGC-"
NAME_SIZE = 7.5  # points
NAME_WIDTH = 26  # letters, before a name takes a second line
LEADER = {"arrowstyle": "-", "lw": 0.4, "color": GREY[0], "shrinkA": 1, "shrinkB": 1, "relpos": (0, 0.5)}


@dataclass(frozen=True)
class Style:
    light: str  # its colour on white; the palette has that on black
    dash: tuple[int, ...] | None
    width: float
    of_interest: bool


def styles(results: Iterable[Results]) -> dict[str, Style]:
    """The look of every row of all tables, by name.

    With more pairs than colours, only the first row compared with each base is in colour. Rows with a run choose first.
    """
    results = list(results)
    run = {row for result in results for row, _, _ in result.records}
    against = [(row, spec.against) for result in results for row, spec in result.grid.rows.items()]
    rows, bases = list(dict.fromkeys(row for row, _ in against)), dict[str, str]()
    for row, base in against:
        if base is not None:
            bases.setdefault(row, base)
    interesting = [row for row in rows if row in bases] or [row for row in rows if row not in FRAMES]
    mains = list(main_pairs(bases))
    more = [row for row in interesting if row not in mains]
    interesting = mains if bases and len(interesting) > len(PALETTE) else [*mains, *more]
    interesting = sorted(interesting, key=lambda row: row not in run)
    found: dict[str, Style] = {}
    free = [colour for colour in PALETTE if colour not in {OWN.get(_family(row)) for row in interesting}]
    for number, row in enumerate(interesting):
        colour = OWN.get(_family(row))
        if colour is None or any(style.light == colour[0] for style in found.values()):
            colour = free.pop(0) if free else PALETTE[number % len(PALETTE)]
        dash = None if number < len(PALETTE) else DASHES[number // len(PALETTE) % len(DASHES)]
        found[row] = Style(colour[0], dash, 2.2 if row in mains else 1.4, True)
        if (base := bases.get(row, "")) in rows and base not in bases:
            found.setdefault(base, Style(colour[0], BASE_DASH, 1.6, True))
    for row in rows:
        frame = FRAMES.get(row)
        found.setdefault(row, Style((INK if frame else GREY)[0], frame, 1.2, False))
    return {row: found[row] for row in rows}


def main_pairs(bases: dict[str, str]) -> dict[str, str]:
    """For each base the first calibrated row; all pairs if no row is named `DGC-…`."""
    calibrated = {row: base for row, base in bases.items() if row.startswith(CALIBRATED)}
    firsts = {base: row for row, base in reversed(calibrated.items())}
    return {row: base for row, base in calibrated.items() if firsts[base] == row} or bases


def _family(row: str) -> str:
    """`ER` for `DGC-ER, closed form`."""
    return row.removeprefix(CALIBRATED).partition(", ")[0]


def pyplot(formulas: bool = False) -> Any:
    """matplotlib's pyplot with this look. `formulas` only where no name comes from a file: else a $ is a $."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("figures need matplotlib, which is missing: pip install matplotlib") from None
    matplotlib.use("Agg")
    matplotlib.rcParams.update(LOOK | {"text.parse_math": formulas})
    from matplotlib import pyplot

    pyplot.close("all")  # the previous figure is saved
    return pyplot


def accuracy_colours() -> Any:
    """Those of a run's own picture of its matrix."""
    from matplotlib.colors import LinearSegmentedColormap

    from utils.run.heatmap import COLOURS

    return LinearSegmentedColormap.from_list("accuracy", COLOURS / 255)


def name_lines(figure: Any) -> None:
    """Write the names of all labelled lines at their right ends, instead of a legend, moved apart where they overlap.

    Call this last: it depends on the limits of the axes.
    """
    figure.draw_without_rendering()  # lays out the axes, so that their height is known
    for axes in figure.axes:
        ends = [end for line in axes.get_lines() if (end := _end(axes, line)) is not None]
        ends.sort(key=lambda end: end[0])
        names = [wrapped(line.get_label()) for _, _, line in ends]
        heights = [1.2 * NAME_SIZE * (1 + name.count("\n")) + 1 for name in names]
        low, high = (72 / figure.dpi * edge for edge in (axes.bbox.y0, axes.bbox.y1))
        places = spread([at for at, _, _ in ends], low, high, heights)
        for (at, value, line), name, place in zip(ends, names, places, strict=True):
            axes.annotate(
                name, (1, value), (9, place - at), xycoords=axes.get_yaxis_transform(), textcoords="offset points",
                va="center", fontsize=NAME_SIZE, color=line.get_color(), annotation_clip=False,
                arrowprops=LEADER if abs(place - at) > NAME_SIZE / 2 else None,
            )  # fmt: skip


def wrapped(name: str, width: int = NAME_WIDTH) -> str:
    return textwrap.fill(name, width)


def _end(axes: Any, line: Any) -> tuple[float, float, Any] | None:
    """Where a line ends, in points and in values; None if it has no name or no value."""
    values = [float(value) for value in line.get_ydata() if value == value]
    if not values or line.get_label().startswith("_child"):  # matplotlib's own names
        return None
    return 72 / axes.figure.dpi * float(axes.transData.transform((0, values[-1]))[1]), values[-1], line


def spread(places: Sequence[float], low: float, high: float, heights: Sequence[float]) -> list[float]:
    """Rising places moved as little as possible so that names of these heights do not overlap.

    They stay between the limits if there is room.
    """
    offsets = [sum(heights[:i]) + height / 2 for i, height in enumerate(heights)]
    groups: list[tuple[float, int]] = []  # neighbours that touch: sum of their places less their offsets, and number
    for place, offset in zip(places, offsets, strict=True):
        total, count = place - offset, 1
        while groups and groups[-1][0] / groups[-1][1] > total / count:
            other = groups.pop()
            total, count = total + other[0], count + other[1]
        groups.append((total, count))
    starts = [total / count for total, count in groups for _ in range(count)]
    return [min(max(start, low), high - sum(heights)) + offset for start, offset in zip(starts, offsets, strict=True)]
