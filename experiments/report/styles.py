"""What a method looks like in all figures: a base and what is made of it have one hue, dashed and solid."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle

from experiments.results.collection import Results

# The methods of the paper's pairs stand out, the others are muted, and what frames a table is grey.
HUES = {
    "ER": "#1f62c4",
    "DER++": "#c2500f",
    "X-DER": "#16803f",
    "Dynamic ER": "#8a3fc4",
    "SGD": "#6b7280",
    "Joint": "#374151",
    "AOP": "#8a6d3b",
    "A-GEM": "#a34f6e",
    "SSVRG": "#5d7d2a",
    "MOCA": "#2f7f87",
    "GSS": "#9a5b4a",
    "GCR": "#5a6bb0",
    "HAL": "#7a7444",
    "iCaRL": "#7d5a94",
}
FRAMES = {"SGD": (1, 3), "Joint": (8, 2, 1, 2)}  # and their dashes
MARKERS = "osDvP^X*"
DASHES = [(3, 2), (7, 3), (9, 3, 2, 3), (5, 2, 1, 2)]
CALIBRATED = "DGC-"
TURN = 0.12  # of the circle of hues, from two variants of a method to the next two


@dataclass(frozen=True)
class Style:
    light: str  # its colour on white
    dark: str  # on black
    dash: tuple[int, ...] | None
    width: float
    marker: str  # of matplotlib


def styles(results: Iterable[Results]) -> dict[str, Style]:
    """Of every row of all tables, by name."""
    rows, bases = _rows(results)
    families = {row: _family(row, rows, bases) for row in rows}
    further = _further(families.values())
    hues: dict[str, str] = {}
    counts: dict[tuple[str, bool], int] = {}
    found = {}
    for row, family in families.items():
        if family not in hues:
            hues[family] = HUES.get(family) or next(further)
        solid = row in bases
        number = counts[family, solid] = counts.get((family, solid), -1) + 1
        in_pair = any(families[other] == family for other in bases)
        marker = MARKERS[(number if in_pair else list(hues).index(family)) % len(MARKERS)]
        found[row] = _style(hues[family], FRAMES.get(family), solid, in_pair, number, marker)
    return found


def _further(families: Iterable[str]) -> Iterator[str]:
    """Hues for methods that have none of their own: first those that no other method has."""
    named = set(families)
    free = [hue for name, hue in HUES.items() if name not in named and name not in FRAMES]
    return cycle(free or [hue for name, hue in HUES.items() if name not in FRAMES])


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


def _family(row: str, rows: list[str], bases: dict[str, str]) -> str:
    """`ER` of `DGC-ER, closed form`, of what is compared with ER, and of `ER, filled at task ends`."""
    name = row.removeprefix(CALIBRATED).partition(", ")[0]
    if name in HUES:
        return name
    seen = {row}
    while (base := bases.get(row)) is not None and base not in seen:
        seen.add(base)
        row = base
    return next((other for other in rows if row.startswith(f"{other}, ")), row)


def _style(hue: str, dash: tuple[int, ...] | None, solid: bool, in_pair: bool, number: int, marker: str) -> Style:
    if dash is None and in_pair and not solid:
        dash = DASHES[number % len(DASHES)]
    width = 2.2 if solid else 1.6 if in_pair else 1.3
    return Style(_shade(hue, 0.36, number), _shade(hue, 0.68, number), dash, width, marker)


def _shade(colour: str, lightness: float, number: int) -> str:
    """The hue at a lightness that reads on the background; each further variant is lighter or darker, and turned."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    hue, _, saturation = colorsys.rgb_to_hls(red, green, blue)
    step = (0.0, 0.12, -0.1)[number % 3]
    turned = (hue + TURN * (number // 2)) % 1
    shaded = colorsys.hls_to_rgb(turned, min(0.85, max(0.2, lightness + step)), saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in shaded)
