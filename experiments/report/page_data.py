"""What the page's script draws and filters: methods, tables, and the cells that tables share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.report.aggregate import Cell, Values, aggregated, records_of
from experiments.report.layout import columns, heading, slug
from experiments.report.styles import Style
from experiments.results.collection import Results
from experiments.results.records import Record
from experiments.results.statistics import Summary
from utils.run.heatmap import COLOURS

DIGITS = 5  # significant ones
Data = dict[str, Any]


def page_data(results: Sequence[Results], looks: dict[str, Style]) -> Data:
    """A cell is listed once, however many tables have it."""
    numbers = {row: number for number, row in enumerate(looks)}
    cells = _Cells()
    tables = [_table(result, numbers, cells) for result in results]
    _make_distinct(tables)
    paired = {row for r in results for row, spec in r.grid.rows.items() if spec.against in r.grid.rows}
    paired |= {str(r.grid.rows[row].against) for r in results for row in r.grid.rows if row in paired}
    methods = [{"name": row, "dash": s.dash, "width": s.width, "pair": row in paired} for row, s in looks.items()]
    return {
        "methods": methods,
        "tables": tables,
        "cells": [_shown(cell) for cell in cells.found],
        "colours": COLOURS.tolist(),
    }


class _Cells:
    """Distinct ones, by the runs that they consist of."""

    def __init__(self) -> None:
        self.found: list[Cell] = []
        self._numbers: dict[tuple[int, ...], int] = {}

    def number(self, records: Sequence[Record]) -> int | None:
        """None without records."""
        if not records:
            return None
        runs = tuple(map(id, records))  # tables that share a run share the record
        if runs not in self._numbers:
            self._numbers[runs] = len(self.found)
            self.found.append(aggregated(records))
        return self._numbers[runs]


def _table(result: Results, numbers: dict[str, int], cells: _Cells) -> Data:
    grid = result.grid
    found = columns(grid, grid.metrics[0])
    places = [[cells.number(records_of(result, row, column.name)) for column in found] for row in grid.rows]
    return {
        "id": slug(grid.name),
        "heading": heading(grid),
        "columns": [{"name": c.name or c.label, "dataset": c.dataset, "buffer": c.buffer} for c in found],
        "rows": [numbers[row] for row in grid.rows],
        "cells": places,
    }


def _make_distinct(tables: list[Data]) -> None:
    """Two grids may have the same name for an anchor."""
    seen: dict[str, int] = {}
    for table in tables:
        seen[table["id"]] = count = seen.get(table["id"], 0) + 1
        if count > 1:
            table["id"] += f"-{count}"


def _shown(cell: Cell) -> Data:
    """What there is of a cell; nothing is said twice, because there may be hundreds."""
    steps, losses = cell.loss
    every = {
        "n": cell.n,
        "aa": [_rounded(s.mean) for s in cell.average_accuracy],
        "se": [_rounded(s.se) for s in cell.average_accuracy],
        "matrix": [_list(row) for row in cell.matrix],
        "starts": cell.task_starts[1:],
        "steps": _list(list(steps)),
        "loss": _list(losses),
        "memory": cell.memory,
        "faia": _pair(cell.faia),
        "gradients": {name: _list(values) for name, values in cell.gradients.items()},
    }
    return {name: value for name, value in every.items() if value not in (None, [], {})}


def _pair(summary: Summary | None) -> Values | None:
    return None if summary is None else [_rounded(summary.mean), _rounded(summary.se)]


def _list(values: Values) -> Values:
    return [_rounded(value) for value in values]


def _rounded(value: float | None) -> float | None:
    if value is None:
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() else short
