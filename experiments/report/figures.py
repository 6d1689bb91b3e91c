"""The figures of a report as files: which there are of a table, and their names."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from experiments.report import drawing
from experiments.report.aggregate import Cell, cell_of
from experiments.report.layout import columns, heading, slug
from experiments.report.styles import Style
from experiments.results import Results
from utils.files import atomic_write

FORMATS = ("png", "svg")
TITLES = {
    "accuracy": "AA_t over the tasks t: mean over seeds ± one standard error",
    "matrices": "a[i,j], Class-IL accuracy in % on task j (column) after task i (row): mean over seeds",
    "loss": "Training loss over steps: mean over seeds",
    "memory": "FAIA against memory, network and all that is stored beside it: mean over seeds ± one standard error",
    "gradients": "Relative error and cosine to the gradient of all past data: mean over seeds",
}
Panels = dict[str, dict[str, Cell]]  # by column and row


def write_figures(results: Sequence[Results], looks: dict[str, Style], directory: Path) -> list[dict[str, str]]:
    """For each table the files of its figures, without suffix, by title. Tables of the same runs share them."""
    drawn: dict[tuple[Any, ...], str] = {}
    found: list[dict[str, str]] = []
    for result in results:
        found.append({})
        for kind, draw in _kinds(result, looks):
            runs = (kind, *((place, id(record)) for place, record in result.records.items()))
            if runs not in drawn:
                drawn[runs] = f"{slug(result.grid.name)}-{kind}"
                _save(draw(), directory, drawn[runs])
            found[-1][TITLES[kind]] = drawn[runs]
    return found


def _kinds(result: Results, looks: dict[str, Style]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The kinds that the runs have something for, and what draws them."""
    grid = result.grid
    looks = {row: looks[row] for row in grid.rows}
    cells = {(row, column): cell_of(result, row, column) for row in grid.rows for column in grid.columns}
    panels: Panels = {
        column: {row: cell for row in grid.rows if (cell := cells[row, column]) is not None} for column in grid.columns
    }
    every = [cell for by_row in panels.values() for cell in by_row.values()]
    title = heading(grid)
    if any(cell.average_accuracy for cell in every):
        yield "accuracy", partial(drawing.accuracy, panels, looks, title)
    if any(cell.matrix for cell in every):
        yield "matrices", partial(drawing.matrices, panels, title)
    if any(cell.loss[0] for cell in every):
        yield "loss", partial(drawing.loss, panels, looks, title)
    by_dataset = _by_dataset(result, cells)
    if by_dataset:
        yield "memory", partial(drawing.memory, by_dataset, looks, title)
    if any(cell.gradients for cell in every):
        yield "gradients", partial(drawing.gradients, panels, title)


def _by_dataset(result: Results, cells: dict[tuple[str, str], Cell | None]) -> dict[str, dict[str, list[Cell]]]:
    """Of datasets with several buffers: by row the cells with a known memory and FAIA."""
    found: dict[str, dict[str, list[Cell]]] = {}
    by_dataset: dict[str, list[Any]] = {}
    for column in columns(result.grid, ""):
        by_dataset.setdefault(column.dataset or "", []).append(column)
    for dataset, members in by_dataset.items():
        if len({column.buffer for column in members}) < 2:
            continue
        rows = {row: [cells[row, column.name] for column in members] for row in result.grid.rows}
        known = {row: [c for c in of_row if c and c.faia and c.memory is not None] for row, of_row in rows.items()}
        if any(cell.memory for of_row in known.values() for cell in of_row):
            found[dataset] = {row: of_row for row, of_row in known.items() if of_row}
    return found


def _save(figure: Any, directory: Path, name: str) -> None:
    """Without dates and random names in it, so that equal results make equal files."""
    for suffix in FORMATS:
        content = io.BytesIO()
        metadata = {"Date": None} if suffix == "svg" else {"Software": None}
        figure.savefig(content, format=suffix, dpi=150, metadata=metadata)

        def write(file: BinaryIO, content: io.BytesIO = content) -> None:
            file.write(content.getvalue())

        atomic_write(directory / f"{name}.{suffix}", write, flag="--output")
