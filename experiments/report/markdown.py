"""Results as Markdown that is readable in a terminal, too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from experiments.cells import Expansion, merged_flags
from experiments.results.collection import UNDEFINED, Results
from experiments.results.statistics import Difference, Summary

PAIRS = "Difference seed by seed: mean [95 % confidence interval], p of the paired t-test (number of seeds)."


def markdown(results: Results) -> str:
    """One table per metric with the paper's numbers beside ours, and below it the differences of paired rows."""
    grid = results.grid
    explained = " ".join(filter(None, [grid.conditions, "Mean ± standard error (number of seeds)."]))
    parts = [f"## {text(grid.title)}", text(explained)]
    for metric in grid.metrics:
        parts += [f"### {metric}", _table(results, metric)]
        if pairs := _pairs(results, metric):
            parts += [PAIRS, pairs]
    parts += ["\n".join(f"- {text(note)}" for note in [*grid.notes, *missing([results.expansion])])]
    return "\n\n".join(filter(None, parts))


def _table(results: Results, metric: str) -> str:
    grid = results.grid
    paper = grid.paper.get(metric, {})
    header, lines = [""], [[row] for row in grid.rows]
    for column in grid.columns:
        header.append(column or metric)
        for line, row in zip(lines, grid.rows, strict=True):
            line.append(_cell(results, row, column, metric))
        if any(column in by_column for by_column in paper.values()):
            header.append("paper")
            for line, row in zip(lines, grid.rows, strict=True):
                value = paper.get(row, {}).get(column)
                line.append("" if value is None else value.text)
    return table(header, lines)


def _cell(results: Results, row: str, column: str, metric: str) -> str:
    gap = results.gap(row, column, metric)
    return " ".join(number_parts(results.summary(row, column, metric))) if gap is None else gap


def number_parts(summary: Summary) -> tuple[str, str, str]:
    """Mean, ± standard error and (number of seeds) of one run or more."""
    error = UNDEFINED if summary.se is None else f"{summary.se:.2f}"
    return f"{summary.mean:.2f}", f"± {error}", f"({summary.n})"


def _pairs(results: Results, metric: str) -> str:
    lines = [[name, *map(difference_text, found)] for name, found in pairs(results, metric).items()]
    return table(["", *(column or metric for column in results.grid.columns)], lines) if lines else ""


def pairs(results: Results, metric: str) -> dict[str, list[Difference | None]]:
    """The differences of the paired rows that have any, by column."""
    found = {}
    for row, spec in results.grid.rows.items():
        differences = [results.difference(row, column, metric) for column in results.grid.columns]
        if any(d is not None and d.summary.n for d in differences):
            found[f"{row} − ({spec.against})"] = differences
    return found


def difference_text(difference: Difference | None) -> str:
    if difference is None or difference.summary.mean is None:
        return UNDEFINED
    mean, n = f"{difference.summary.mean:+.2f}", difference.summary.n
    if difference.low is None or difference.high is None:
        return f"{mean} ({n})"
    p = UNDEFINED if difference.p is None else f"{difference.p:.2g}"
    return f"{mean} [{difference.low:+.2f}, {difference.high:+.2f}], p {p} ({n})"


def missing(expansions: Iterable[Expansion]) -> list[str]:
    """What cannot be run here, and why, in one line: rows, and columns of which no row can be."""
    names: dict[str, dict[str, None]] = {}  # by reason
    for e in expansions:
        for (row, column), reason in e.unavailable.items():
            rows = [row for row in e.grid.rows if merged_flags(e.grid, row, column) is not None]
            whole = column and all((row, column) in e.unavailable for row in rows)
            names.setdefault(reason, {})[column if whole else row] = None
    found = [f"{', '.join(of_reason)} ({reason})" for reason, of_reason in names.items()]
    return [f"Not available: {'; '.join(found)}."] if found else []


def text(name: str) -> str:
    """On one line and without HTML, whatever a file calls a row or a table."""
    return " ".join(name.split()).replace("<", "&lt;")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[text(cell).replace("|", "\\|") for cell in row] for row in (header, *rows)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(header))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
