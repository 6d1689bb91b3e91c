"""How a table is laid out, whatever it is written in: its columns in groups, and what they are about."""

from __future__ import annotations

import re
from itertools import groupby
from typing import NamedTuple

from experiments.grid import Grid
from experiments.results import column_flags


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
    """A name for files and anchors."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "table"


def heading(grid: Grid) -> str:
    """The title, with the paper's number of the table or figure before it."""
    return f"{grid.place}: {grid.title}" if grid.place and grid.place != "ours" else grid.title
