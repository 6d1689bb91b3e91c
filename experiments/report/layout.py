"""How a table is laid out, whatever it is written in: its columns in groups, and what they are about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from experiments.grid import Grid
from experiments.results.collection import column_flags


class Column(NamedTuple):
    """A column with the two lines of its head; dataset and buffer, None where unknown, are what it is found by."""

    name: str
    group: str
    label: str
    dataset: str | None
    buffer: str | None


def columns(grid: Grid, metric: str) -> list[Column]:
    """`S-CIFAR100, 500` stands as 500 below S-CIFAR100, as in the paper."""
    grouped = all(", " in column for column in grid.columns)
    found = []
    for name in grid.columns:
        group, _, label = name.partition(", ") if grouped else ("", "", name)
        flags = column_flags(grid, name)
        number = next((part for part in name.split(", ") if part.isdecimal()), None)
        dataset, buffer = group or flags.get("dataset"), number or flags.get("buffer_size")
        found.append(Column(name, group, label or metric, dataset, None if buffer is None else str(buffer)))
    return found


def groups(found: list[Column]) -> list[tuple[str, int]]:
    """Neighbours with the same first line, and how many they are; empty if no column has one."""
    runs = [(group, len(list(members))) for group, members in groupby(found, key=lambda column: column.group)]
    return runs if any(group for group, _ in runs) else []


def slug(name: str) -> str:
    """A name for files and anchors. `report` is taken, on some disks in any case: `latex/report.tex` has all tables."""
    found = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "table"
    return f"{found}-table" if found.lower() == "report" else found


def heading(grid: Grid) -> str:
    """The title, with the paper's number of the table or figure before it."""
    return f"{grid.place}: {grid.title}" if _is_placed(grid) else grid.title


def shared_heading(grids: Sequence[Grid]) -> str:
    """Of what stands for several tables: `Tables 1, 5 and 6: FAIA, FF and FAA in class-incremental learning`."""
    if len(grids) == 1:
        return heading(grids[0])
    ordered = sorted(grids, key=_place)
    numbers: dict[str, list[str]] = {}
    for grid in ordered:
        if _is_placed(grid):
            kind, _, number = grid.place.partition(" ")
            numbers.setdefault(kind, []).append(number)
    places = _listed(
        [f"{kind}{'s' if len(of_kind) > 1 else ''} {_listed(of_kind)}" for kind, of_kind in numbers.items()]
    )
    titles = _shared_title(list(dict.fromkeys(grid.title for grid in ordered)))
    return f"{places}: {titles}" if places else titles


def _is_placed(grid: Grid) -> bool:
    """Whether it is the paper's."""
    return grid.place not in ("", "ours")


def _place(grid: Grid) -> tuple[bool, bool, int, str]:
    """Sorts the paper's tables before its figures, by number, and ours behind them."""
    number = grid.place.rpartition(" ")[2]
    return not _is_placed(grid), grid.place.startswith("Figure"), int(number) if number.isdecimal() else 0, grid.place


def _shared_title(titles: list[str]) -> str:
    """What all titles end with is said once."""
    words, same = [title.split() for title in titles], 0
    while all(len(of) > same + 1 and of[-1 - same] == words[0][-1 - same] for of in words):
        same += 1
    if len(titles) == 1 or not same:
        return "; ".join(titles)
    return f"{_listed([' '.join(of[:-same]) for of in words])} {' '.join(words[0][-same:])}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
