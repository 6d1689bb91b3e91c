"""The figures of a report as files: which there are of a table, and their names."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from experiments.report import drawing
from experiments.report.aggregate import Cell, cell_of
from experiments.report.frame import Words
from experiments.report.layout import columns, shared_heading, slug
from experiments.report.styles import Style
from experiments.results.collection import Results
from experiments.results.statistics import Summary
from utils.resume.files import atomic_write, one_line_errors

FOLDER = "figures"
FORMATS = ("png", "svg")
KINDS = ("accuracy", "matrices", "loss", "memory", "gradients")
SHOWN = re.compile(rf"\({FOLDER}/([A-Za-z0-9_-]+-(?:{'|'.join(KINDS)}))\.png\)")
MATRICES = "a[i,j], Class-IL accuracy in % on task j (column) after task i (row): mean over seeds"
LOSS = "Training loss over steps: mean over seeds"
GRADIENTS = "Relative error and cosine to the gradient of all past data: mean over seeds"
Panels = dict[str, dict[str, Cell]]  # by column and row
ByDataset = dict[str, dict[str, list[Cell]]]  # and row
Cells = dict[tuple[str, str], Cell | None]  # by row and column
Kind = tuple[str, str, Callable[[Words], Any]]  # its name, the caption, and what draws it


def write_figures(results: Sequence[Results], looks: dict[str, Style], directory: Path) -> list[dict[str, str]]:
    """For each table the files of its figures, without suffix, by caption. Tables of the same runs share them."""
    sharing: dict[tuple[Any, ...], list[Results]] = {}
    for result in results:
        sharing.setdefault(_shared(result), []).append(result)
    drawn: dict[tuple[Any, ...], dict[str, str]] = {}
    for key, alike in sharing.items():
        grid, heading = alike[0].grid, shared_heading([result.grid for result in alike])
        drawn[key] = {}
        for kind, caption, draw in kinds(alike[0], looks):
            drawn[key][caption] = name = f"{slug(grid.name)}-{kind}"
            _save(draw(Words(heading, grid.conditions, f"{caption}.")), directory / FOLDER, name)
    return [drawn[_shared(result)] for result in results]


def _shared(result: Results) -> tuple[Any, ...]:
    """Equal for tables whose figures are the same."""
    grid, runs = result.grid, ((place, id(record)) for place, record in result.records.items())
    return grid.conditions, *grid.columns, *runs


def shown_figures(directory: Path) -> set[str]:
    """The figures, without suffix, that the report in a directory shows; none if there is no report."""
    try:
        return set(SHOWN.findall((directory / "report.md").read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return set()


def remove_figures(names: Iterable[str], directory: Path) -> None:
    for name in names:
        for suffix in FORMATS:
            path = directory / FOLDER / f"{name}.{suffix}"
            with one_line_errors(path, "--output"):
                path.unlink(missing_ok=True)


def kinds(result: Results, looks: dict[str, Style]) -> Iterator[Kind]:
    """The kinds that the runs have something for."""
    grid = result.grid
    looks = {row: looks[row] for row in grid.rows}
    cells: Cells = {(row, column): cell_of(result, row, column) for row in grid.rows for column in grid.columns}
    panels: Panels = {
        column: {row: cell for row in grid.rows if (cell := cells[row, column]) is not None} for column in grid.columns
    }
    every = [cell for by_row in panels.values() for cell in by_row.values()]
    if any(cell.average_accuracy for cell in every):
        yield "accuracy", _over_tasks(panels), partial(drawing.accuracy, panels, looks)
    if any(cell.matrix for cell in every):
        yield "matrices", MATRICES, partial(drawing.matrices, panels)
    if any(cell.loss[0] for cell in every):
        yield "loss", LOSS, partial(drawing.loss, panels, looks)
    by_dataset = _by_dataset(result, cells)
    if by_dataset:
        yield "memory", _against_memory(result, cells, by_dataset), partial(drawing.memory, by_dataset, looks)
    if any(cell.gradients for cell in every):
        yield "gradients", GRADIENTS, partial(drawing.gradients, panels)


def _over_tasks(panels: Panels) -> str:
    """What is drawn of the errors depends on how many lines there are."""
    filled = [cells for cells in panels.values() if any(cell.average_accuracy for cell in cells.values())]
    banded = [cells for cells in filled if drawing.with_bands(cells)]
    errors, all_errors = (
        _errors(value for cells in of for cell in cells.values() for value in cell.average_accuracy)
        for of in (banded, filled)
    )
    few = f", in panels of at most {drawing.BANDS} methods" if errors and len(banded) < len(filled) else ""
    if all_errors and not errors:
        few = f", without their standard errors: there are more than {drawing.BANDS} methods"
    return f"AA_t over the tasks t: mean over seeds{errors}{few}"


def _against_memory(result: Results, cells: Cells, by_dataset: ByDataset) -> str:
    drawn = [cell.faia for rows in by_dataset.values() for of_row in rows.values() for cell in of_row if cell.faia]
    text = f"FAIA against memory, network and all that is stored beside it: mean over seeds{_errors(drawn)}"
    untold = _untold(result, cells, by_dataset)
    return f"{text}. Without {', '.join(untold)}: their runs do not tell their memory" if untold else text


def _errors(values: Iterable[Summary]) -> str:
    """One run has no standard error."""
    known = [value.se is not None for value in values if value.n]
    if not any(known):
        return ""
    return " ± one standard error" + ("" if all(known) else " where there are several seeds")


def _untold(result: Results, cells: Cells, by_dataset: ByDataset) -> list[str]:
    """The rows that have FAIA and no known memory; if that is so in some columns only, with these."""
    members = [column.name for column in columns(result.grid, "") if (column.dataset or "") in by_dataset]
    found = []
    for row in result.grid.rows:
        having = {name: cell for name in members if (cell := cells[row, name]) is not None and cell.faia}
        without = [name for name, cell in having.items() if cell.memory is None]
        if without:
            found.append(row if len(without) == len(having) else f"{row} ({'; '.join(without)})")
    return found


def _by_dataset(result: Results, cells: Cells) -> ByDataset:
    """Of datasets with several buffers: by row the cells with a known memory and FAIA."""
    found: ByDataset = {}
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
        figure.savefig(content, format=suffix, metadata=metadata)

        def write(file: BinaryIO, content: io.BytesIO = content) -> None:
            file.write(content.getvalue())

        atomic_write(directory / f"{name}.{suffix}", write, flag="--output")
