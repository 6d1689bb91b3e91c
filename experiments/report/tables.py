"""What the tables of a report have in common, whatever they are written in, and their Markdown.

Columns in groups, numbers and differences in words, which of them are better, and whether a number agrees with the
paper's, which is judged only at the paper's own scale.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, groupby
from typing import NamedTuple

from experiments.cells import Expansion, merged_flags
from experiments.grid import Grid, PaperValue
from experiments.results.collection import UNDEFINED, Results, column_flags
from experiments.results.records import COSTS, LESS_IS_BETTER
from experiments.results.statistics import Difference, Summary

PAIRS = "Difference seed by seed: mean [95 % confidence interval], p of the paired t-test (number of seeds)."
PAPER_PROFILE = "paper"
ERRORS = 2  # up to this many standard errors a difference is put down to chance
BETTER, WORSE, UNCLEAR, UNJUDGED = "better", "worse", "unclear", "unjudged"
AGREES, HIGHER, LOWER, UNTOLD = "agrees", "higher", "lower", "untold"
LEGEND = {
    AGREES: ("✓", f"within {ERRORS} standard errors of the difference, √(ours² + paper's²)"),
    HIGHER: ("▲", "higher than the paper by more than that"),
    LOWER: ("▼", "lower than the paper by more than that"),
    UNTOLD: ("·", "cannot be judged without both standard errors (ours needs 2 runs or more)"),
}


class Column(NamedTuple):
    """A column with the two lines of its head; dataset and buffer, None where unknown, are what it is found by."""

    name: str
    group: str
    label: str
    dataset: str | None
    buffer: str | None


def full_name(column: Column) -> str:
    """The name of a column that stands alone: a mere number is the buffer."""
    return f"buffer {column.name}" if column.name and column.name == column.buffer else column.name or column.label


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
    return f"{grid.place}: {grid.title}" if grid.place not in ("", "ours") else grid.title


class Agreement(NamedTuple):
    difference: float  # ours − the paper's
    verdict: str


def at_paper_scale(grid: Grid) -> bool:
    return grid.profile == PAPER_PROFILE


def agreement(ours: Summary, paper: PaperValue) -> Agreement | None:
    """None if we have no number."""
    if ours.mean is None:
        return None
    difference = ours.mean - paper.mean
    if ours.se is None or paper.error is None:
        return Agreement(difference, UNTOLD)
    if abs(difference) <= ERRORS * math.hypot(ours.se, paper.error):
        return Agreement(difference, AGREES)
    return Agreement(difference, HIGHER if difference > 0 else LOWER)


def judged(difference: Difference, metric: str) -> str:
    """Better or worse only if the confidence interval excludes 0. Costs are shown only: machines differ in speed."""
    low, high = difference.low, difference.high
    if metric in COSTS or low is None or high is None or low <= 0 <= high:
        return UNCLEAR
    return BETTER if (high < 0) == (metric in LESS_IS_BETTER) else WORSE


def outcome(results: Results, row: str, column: str, metric: str) -> str:
    """Less forgetting is unjudged where accuracy is worse: a network that learns nothing forgets nothing."""
    difference, (name, *setting) = results.difference(row, column, metric), metric.split(" ")
    found = UNCLEAR if difference is None else judged(difference, metric)
    if found != BETTER or name not in ("FF", "BWT"):
        return found
    accuracies = (" ".join([accuracy, *setting]) for accuracy in ("FAIA", "FAA"))
    return UNJUDGED if any(outcome(results, row, column, a) == WORSE for a in accuracies) else BETTER


def with_arrow(metric: str) -> str:
    """The metric with the direction that is better, if it is judged."""
    return metric if metric in COSTS else f"{metric} {'↓' if metric in LESS_IS_BETTER else '↑'}"


def markdown(results: Results) -> str:
    """One table per metric with the paper's numbers beside ours, and below it the differences of paired rows."""
    grid = results.grid
    explained = " ".join(filter(None, [grid.conditions, "Mean ± standard error (number of seeds)."]))
    parts = [f"## {text(grid.title)}", text(explained)]
    for metric in grid.metrics:
        parts += [f"### {with_arrow(metric)}", table(number_rows(results, metric))]
        if differences := pair_rows(results, metric):
            parts += [PAIRS, table(differences)]
    parts += ["\n".join(f"- {text(note)}" for note in notes(results, grid.rows))]
    return "\n\n".join(filter(None, parts))


def number_rows(results: Results, metric: str) -> list[list[str]]:
    """A table with its head: ours, and beside it the paper's where it has any."""
    grid = results.grid
    paper = grid.paper.get(metric, {})
    lines = [[""], *([row] for row in grid.rows)]
    for column in grid.columns:
        cells = [column or metric, *(_cell(results, row, column, metric) for row in grid.rows)]
        beside = [paper.get(row, {}).get(column) for row in grid.rows]
        for line, cell in zip(lines, cells, strict=True):
            line.append(cell)
        if any(beside):
            for line, text in zip(lines, ["paper", *(value.text if value else "" for value in beside)], strict=True):
                line.append(text)
    return lines


def _cell(results: Results, row: str, column: str, metric: str) -> str:
    gap = results.gap(row, column, metric)
    return " ".join(number_parts(results.summary(row, column, metric))) if gap is None else gap


def number_parts(summary: Summary) -> tuple[str, str, str]:
    """Mean, ± standard error and (number of seeds) of one run or more."""
    error = UNDEFINED if summary.se is None else f"{summary.se:.2f}"
    return f"{summary.mean:.2f}", f"± {error}", f"({summary.n})"


def pair_rows(results: Results, metric: str) -> list[list[str]]:
    """The differences of the paired rows with their head; empty if there are none."""
    against, shown = bases(results.grid), partial(difference_text, brief=metric in COSTS)
    lines = [[f"{row} − ({against[row]})", *map(shown, found)] for row, found in pairs(results, metric).items()]
    return [["", *(column or metric for column in results.grid.columns)], *lines] if lines else []


def bases(grid: Grid) -> dict[str, str]:
    """The rows that are compared with another row of the table, and that other one."""
    return {row: base for row, spec in grid.rows.items() if (base := spec.against) in grid.rows}


def pairs(results: Results, metric: str) -> dict[str, list[Difference | None]]:
    """The differences of the paired rows that have any, by row; a list has one per column."""
    found = {}
    for row in bases(results.grid):
        differences = [results.difference(row, column, metric) for column in results.grid.columns]
        if any(d is not None and d.summary.n for d in differences):
            found[row] = differences
    return found


def difference_text(difference: Difference | None, brief: bool = False, seeds: int | None = None) -> str:
    """Mean, interval, p-value and (number of seeds); without p-value if brief, and without a number that is known."""
    if difference is None or difference.summary.mean is None:
        return UNDEFINED
    mean, n = f"{difference.summary.mean:+.2f}", difference.summary.n
    number = "" if n == seeds else f" ({n})"
    if difference.low is None or difference.high is None:
        return mean + number
    p = "" if brief else f", p {UNDEFINED if difference.p is None else f'{difference.p:.2g}'}"
    return f"{mean} [{difference.low:+.2f}, {difference.high:+.2f}]{p}{number}"


def notes(results: Results, rows: Iterable[str]) -> list[str]:
    """Without those about methods or datasets of the paper's table of which these rows and all columns show none."""
    grid, found = results.grid, results.grid.notes
    printed = [by_column for by_row in grid.paper.values() for by_column in by_row.values()]
    for known, own, chosen in ((grid.paper.values(), grid.rows, rows), (printed, grid.columns, grid.columns)):
        shown = _families(chosen)
        names = sorted(_families(chain(own, *known)), key=len, reverse=True)  # `Dynamic ER` is not about ER
        named = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names)) or '$.'})(?![\w+-])")
        found = [note for note in found if not (about := set(named.findall(note))) or about & shown]
    return [*found, *missing([results.expansion])]


def _families(names: Iterable[str]) -> set[str]:
    """`ER` of `ER, filled at task ends`, and the dataset of a column with a buffer."""
    return {name.partition(", ")[0] for name in names} - {""}


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


def table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the head."""
    cells = [[text(cell).replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
