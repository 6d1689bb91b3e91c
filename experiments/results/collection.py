"""The results of a grid: the records of its finished runs, their statistics, and files with all of it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.cells import Cell, Expansion, merged_flags
from experiments.grid import Flags, Grid
from experiments.results.records import METRICS, Record, read_record
from experiments.results.statistics import Difference, Summary, paired_difference, summarise
from utils.loggers import plain
from utils.resume.files import atomic_write_text

UNDEFINED = "–"  # the runs are finished and do not have it
NOT_RUN = "not run"  # or not to its end, or damaged
NOT_AVAILABLE = "not available"
ABSENT = ""  # the grid has no such cell
COLUMN_FLAGS = ("dataset", "buffer_size")


@dataclass(frozen=True)
class Results:
    """The records of the cells of a grid that are done, by row, column and seed."""

    expansion: Expansion
    records: dict[tuple[str, str, int], Record]

    @property
    def grid(self) -> Grid:
        return self.expansion.grid

    def by_seed(self, row: str, column: str, metric: str) -> dict[int, float]:
        """A metric of a row and column, for the seeds that are done and have it."""
        values = {}
        for seed in self.grid.seeds:
            record = self.records.get((row, column, seed))
            value = METRICS[metric](record) if record is not None else None
            if value is not None:
                values[seed] = value
        return values

    def gap(self, row: str, column: str, metric: str) -> str | None:
        """What a cell without a number shows; None if it has one."""
        if (row, column) in self.expansion.unavailable:
            return NOT_AVAILABLE
        if merged_flags(self.grid, row, column) is None:
            return ABSENT
        if not any((row, column, seed) in self.records for seed in self.grid.seeds):
            return NOT_RUN
        return None if self.by_seed(row, column, metric) else UNDEFINED

    def summary(self, row: str, column: str, metric: str) -> Summary:
        return summarise(list(self.by_seed(row, column, metric).values()))

    def difference(self, row: str, column: str, metric: str) -> Difference | None:
        """Difference to the row that it is compared with; None if there is none."""
        against = self.grid.rows[row].against
        if against not in self.grid.rows:
            return None
        return paired_difference(self.by_seed(row, column, metric), self.by_seed(against, column, metric))


def read_results(
    expansions: Iterable[Expansion], curves: bool = False, known: Mapping[str, Record] | None = None
) -> list[Results]:
    """Each run is read once, however many cells share it; with `curves`, so is its log.

    `known` has records of runs that were made elsewhere, by their hashes, for cells without a finished run here.
    """
    read: dict[Path, Record | None] = {}

    def record(cell: Cell) -> Record | None:
        if cell.path not in read:
            read[cell.path] = read_record(cell.path, cell.args, curves) or (known or {}).get(cell.config_hash)
        return read[cell.path]

    results = []
    for expansion in expansions:
        found = {(cell.row, cell.column, cell.seed): record(cell) for cell in expansion.cells}
        results.append(Results(expansion, {place: value for place, value in found.items() if value is not None}))
    return results


def write_results(results: Sequence[Results], directory: Path) -> None:
    """`results.json`: the tables, and one record per run with the cells that it belongs to. `results.csv`: one line
    per cell and seed. A report can be made from these without the run directories; no path or host is in them.
    """
    runs, environments = _runs(results)
    lists = {"tables": [_described(r) for r in results], "environments": environments, "runs": runs}
    # One list element per line: small, yet easy to read and to compare.
    parts = [f'"{name}": [\n' + ",\n".join(map(_line, items)) + "\n]" for name, items in lists.items()]
    atomic_write_text(directory / "results.json", "{" + ",\n".join(parts) + "}\n", flag="--output")
    atomic_write_text(directory / "results.csv", _csv(results), flag="--output")


def _line(item: Any) -> str:
    return json.dumps(plain(item), ensure_ascii=False, allow_nan=False)


def _runs(results: Sequence[Results]) -> tuple[list[Record], list[Any]]:
    """The distinct runs; their environments, mostly the same, are listed once and referred to by number."""
    runs: dict[int, Record] = {}
    environments: list[Any] = []
    for result in results:
        for (row, column, _), record in result.records.items():
            if id(record) not in runs:  # cells that share a run share the record
                if record["environment"] not in environments:
                    environments.append(record["environment"])
                number = environments.index(record["environment"])
                runs[id(record)] = {"cells": []} | record | {"environment": number}
            runs[id(record)]["cells"].append([result.grid.name, row, column])
    return list(runs.values()), environments


def _described(results: Results) -> dict[str, Any]:
    grid = results.grid
    return {
        "name": grid.name,
        "title": grid.title,
        "place": grid.place,
        "profile": grid.profile,
        "conditions": grid.conditions,
        "notes": grid.notes,
        "metrics": grid.metrics,
        "rows": list(grid.rows),
        "columns": list(grid.columns),
        "seeds": list(grid.seeds),
        "against": {row: spec.against for row, spec in grid.rows.items() if spec.against is not None},
        "column_flags": {column: column_flags(grid, column) for column in grid.columns},
        "absent": [[row, c] for row in grid.rows for c in grid.columns if merged_flags(grid, row, c) is None],
        "unavailable": [[*place, reason] for place, reason in results.expansion.unavailable.items()],
        "paper": {
            metric: {
                row: {column: value.text for column, value in by_column.items()} for row, by_column in rows.items()
            }
            for metric, rows in grid.paper.items()
        },
    }


def column_flags(grid: Grid, column: str) -> Flags:
    """Dataset and buffer of a column, if all rows share them."""
    flags = grid.flags | grid.columns[column]
    return {name: flags[name] for name in COLUMN_FLAGS if flags.get(name) is not None}


def _csv(results: Sequence[Results]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "profile", "row", "column", "seed", *METRICS])  # a user's own grid has no profile
    for result in results:
        for (row, column, seed), record in result.records.items():
            values = [METRICS[metric](record) for metric in METRICS]
            place = [result.grid.name, result.grid.profile, row, column, seed]
            writer.writerow([*place, *("" if v is None else v for v in values)])
    return text.getvalue()
