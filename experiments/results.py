"""The results of a grid: records of its finished runs, as raw files and as Markdown tables of mean ± standard error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.grid import Cell, Grid, merged_flags
from experiments.records import METRICS, Record, read_record
from experiments.statistics import Difference, Summary, paired_difference, summarise
from utils.results import write_json

NOT_AVAILABLE = "not available"
UNDEFINED = "–"


@dataclass(frozen=True)
class Results:
    """A grid with the records of those of its cells that are done."""

    grid: Grid
    records: list[Record]

    def by_seed(self, row: str, column: str, metric: str) -> dict[int, float]:
        """A metric of a row and column, for the seeds that are done and have it."""
        values = {
            record["seed"]: METRICS[metric](record)
            for record in self.records
            if (record["row"], record["column"]) == (row, column)
        }
        return {seed: value for seed, value in values.items() if value is not None}

    def summary(self, row: str, column: str, metric: str) -> Summary:
        return summarise(list(self.by_seed(row, column, metric).values()))

    def difference(self, row: str, column: str, metric: str) -> Difference | None:
        """To the row that it is paired with."""
        against = self.grid.rows[row].against
        if against is None:
            return None
        return paired_difference(self.by_seed(row, column, metric), self.by_seed(against, column, metric))


def read_results(grid: Grid, cells: Sequence[Cell]) -> Results:
    return Results(grid, [record for record in map(read_record, cells) if record is not None])


def write_results(results: Results, directory: Path) -> None:
    """`results.json`, one record per cell that is done, and `results.md`."""
    grid = results.grid
    content = {"title": grid.title, "seeds": list(grid.seeds), "rows": list(grid.rows), "columns": list(grid.columns)}
    write_json(directory / "results.json", content | {"runs": results.records})
    (directory / "results.md").write_text(markdown(results) + "\n", encoding="utf-8")


def markdown(results: Results) -> str:
    """One table per metric, and below it the differences of paired rows."""
    parts = [f"## {results.grid.title}", "Mean ± standard error (number of seeds)."]
    for metric in results.grid.metrics:
        parts += [f"### {metric}", _table(results, metric)]
        if pairs := _pairs(results, metric):
            parts += [
                "Difference seed by seed: mean [95 % confidence interval], p of the paired t-test (seeds).",
                pairs,
            ]
    return "\n\n".join(parts)


def _table(results: Results, metric: str) -> str:
    grid = results.grid
    lines = []
    for row in grid.rows:
        cells = [_cell(results, row, column, metric) for column in grid.columns]
        lines.append([row, *cells])
    return markdown_table(["", *_column_titles(grid)], lines)


def _cell(results: Results, row: str, column: str, metric: str) -> str:
    if row in results.grid.unavailable:
        return NOT_AVAILABLE
    if merged_flags(results.grid, row, column) is None:
        return ""
    summary = results.summary(row, column, metric)
    if summary.mean is None:
        return UNDEFINED
    return f"{summary.mean:.2f} ± {_number(summary.se)} ({summary.n})"


def _pairs(results: Results, metric: str) -> str | None:
    grid = results.grid
    lines = []
    for row, spec in grid.rows.items():
        differences = [results.difference(row, column, metric) for column in grid.columns]
        if any(d is not None and d.summary.n for d in differences):
            lines.append([f"{row} − {spec.against}", *map(_difference, differences)])
    return markdown_table(["", *_column_titles(grid)], lines) if lines else None


def _difference(difference: Difference | None) -> str:
    if difference is None or difference.summary.mean is None:
        return UNDEFINED
    d = difference
    mean = f"{d.summary.mean:+.2f}"
    if d.low is None or d.high is None:
        return f"{mean} (1)"
    p = UNDEFINED if d.p is None else f"{d.p:.2g}"
    return f"{mean} [{d.low:+.2f}, {d.high:+.2f}], p {p} ({d.summary.n})"


def _column_titles(grid: Grid) -> list[str]:
    return [column or "all" for column in grid.columns]


def _number(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.2f}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Padded, so that it is readable in a terminal, too."""
    table = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    widths = [max(3, *(len(row[i]) for row in table)) for i in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in table
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
