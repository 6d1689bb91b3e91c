"""The figures of a report, drawn by matplotlib: which there are of a table, and their files."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from experiments.report.aggregate import Cell, cell_of
from experiments.report.styles import BLUE, GREY, INK, NAME_SIZE, Style, name_lines, pyplot
from experiments.report.tables import columns, heading, slug
from experiments.results.collection import Results
from experiments.results.statistics import Summary
from utils.resume.files import atomic_write

FOLDER = "figures"
FORMATS = ("png", "svg")
CAPTIONS = {
    "accuracy": "AA_t over the tasks t: mean over seeds",
    "matrices": "a[i,j], Class-IL accuracy in % on task j (column) after task i (row): mean over seeds",
    "loss": "Training loss over steps: mean over seeds",
    "memory": "FAIA against memory, network and all that is stored beside it: mean over seeds",
    "gradients": "Relative error and cosine to the gradient of all past data: mean over seeds",
}
ERRORS = {"accuracy": "; bands of the coloured methods: ± one standard error", "memory": "; bars: ± one standard error"}
PER_ROW = 3
PANEL = (3.1, 2.4)  # inches
LETTER = 0.058  # inches of a name
TILE = 1.05  # inches of a matrix
GAP = 1.15  # from one matrix to the next, in matrices
ESTIMATES = {
    "batch": ("one replay batch", GREY[0], (1, 2), 1.0),
    "buffer": ("whole buffer", INK[0], (6, 3), 1.2),
    "calibrated": ("calibrated", BLUE[0], None, 1.8),
}
Panels = dict[str, dict[str, Cell]]  # by column and row
ByDataset = dict[str, dict[str, list[Cell]]]  # and row


def write_figures(results: Sequence[Results], looks: dict[str, Style], directory: Path) -> list[dict[str, str]]:
    """For each table the files of its figures, without suffix, by caption. Tables of the same runs share them."""
    sharing: dict[tuple[Any, ...], list[Results]] = {}
    for result in results:
        sharing.setdefault(_shared(result), []).append(result)
    drawn: dict[tuple[Any, ...], dict[str, str]] = {}
    for key, alike in sharing.items():
        title = "; ".join(dict.fromkeys(heading(result.grid) for result in alike))
        drawn[key] = {}
        for kind, caption, figure in figures(alike[0], looks):
            _frame(figure, title, alike[0].grid.conditions, f"{caption}.")
            drawn[key][caption] = name = f"{slug(alike[0].grid.name)}-{kind}"
            _save(figure, directory / FOLDER, name)
    return [drawn[_shared(result)] for result in results]


def _shared(result: Results) -> tuple[Any, ...]:
    """Equal for tables whose figures are the same."""
    grid, runs = result.grid, ((place, id(record)) for place, record in result.records.items())
    return grid.conditions, *grid.columns, *runs


def figures(result: Results, looks: dict[str, Style]) -> Iterator[tuple[str, str, Any]]:
    """The kinds that the runs have something for: name, caption and figure."""
    grid = result.grid
    looks = {row: looks[row] for row in grid.rows}
    panels: Panels = {
        column: {row: cell for row in grid.rows if (cell := cell_of(result, row, column)) is not None}
        for column in grid.columns
    }
    panels = {column: cells for column, cells in panels.items() if cells}
    every = [cell for by_row in panels.values() for cell in by_row.values()]
    by_dataset = _by_dataset(result, panels)
    several = any(cell.n > 1 for cell in every)
    drawers = {
        "accuracy": (any(c.average_accuracy for c in every), lambda: draw_accuracy(panels, looks)),
        "matrices": (any(c.matrix for c in every), lambda: draw_matrices(panels)),
        "loss": (any(c.loss[0] for c in every), lambda: draw_loss(panels, looks)),
        "memory": (bool(by_dataset), lambda: draw_memory(by_dataset, looks)),
        "gradients": (any(c.gradients for c in every), lambda: draw_gradients(panels)),
    }
    for kind, (there, draw) in drawers.items():
        if there:
            yield kind, CAPTIONS[kind] + (ERRORS.get(kind, "") if several else ""), draw()


def _by_dataset(result: Results, panels: Panels) -> ByDataset:
    """For datasets with several buffers, by row the cells with a known memory and FAIA."""
    found: ByDataset = {}
    members: dict[str, list[Any]] = {}
    for column in columns(result.grid, ""):
        members.setdefault(column.dataset or "", []).append(column)
    for dataset, of_dataset in members.items():
        if len({column.buffer for column in of_dataset}) < 2:
            continue
        rows = {row: [panels.get(c.name, {}).get(row) for c in of_dataset] for row in result.grid.rows}
        known = {row: [c for c in cells if c and c.faia and c.memory is not None] for row, cells in rows.items()}
        if any(cell.memory for cells in known.values() for cell in cells):
            found[dataset] = {row: cells for row, cells in known.items() if cells}
    return found


def _frame(figure: Any, title: str, scale: str, caption: str) -> None:
    """Words around the panels, so that a figure can be understood without the report."""
    width = figure.get_figwidth() - 0.2
    named = [textwrap.fill(title, int(width / 0.085))] + ([textwrap.fill(scale, int(width / LETTER))] if scale else [])
    at_left = {"x": 0.1 / figure.get_figwidth(), "ha": "left"}
    figure.suptitle("\n".join(named), fontsize=9, **at_left)
    figure.supxlabel(textwrap.fill(caption, int(width / LETTER)), fontsize=NAME_SIZE, color="#565e6c", **at_left)


def _save(figure: Any, directory: Path, name: str) -> None:
    """Without dates and random names in it, so that equal results make equal files."""
    for suffix in FORMATS:
        content = io.BytesIO()
        metadata = {"Date": None} if suffix == "svg" else {"Software": None}
        figure.savefig(content, format=suffix, metadata=metadata)

        def write(file: BinaryIO, content: io.BytesIO = content) -> None:
            file.write(content.getvalue())

        atomic_write(directory / f"{name}.{suffix}", write, flag="--output")


def _panels(count: int, names: Iterable[str], **shared: Any) -> tuple[Any, list[Any]]:
    """A figure with so many axes, each with room for the names of its lines."""
    names = list(names)
    across = min(PER_ROW, count)
    down = math.ceil(count / across)
    room, height = LETTER * max(map(len, names)) + 0.3, max(PANEL[1], 0.145 * len(names) + 0.4)
    size = (across * (PANEL[0] + room), down * height + 0.6)
    figure, grid = pyplot().subplots(down, across, figsize=size, squeeze=False, layout="constrained", **shared)
    axes = list(grid.flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def _line(style: Style) -> dict[str, Any]:
    dash = (0, style.dash) if style.dash else "-"
    return {"color": style.light, "linewidth": 0.8 * style.width, "linestyle": dash, "zorder": 2 + style.of_interest}


def draw_accuracy(panels: Panels, looks: dict[str, Style]) -> Any:
    figure, axes = _panels(len(panels), looks, sharey=True)
    for one, (column, cells) in zip(axes, panels.items(), strict=True):
        for row, cell in cells.items():
            tasks = range(1, len(cell.average_accuracy) + 1)
            means, errors = _means_and_errors(cell.average_accuracy)
            one.plot(tasks, means, label=row, marker="o", markersize=2.5, markeredgewidth=0, **_line(looks[row]))
            if looks[row].of_interest:
                low, high = ([m + sign * e for m, e in zip(means, errors, strict=True)] for sign in (-1, 1))
                one.fill_between(tasks, low, high, color=looks[row].light, alpha=0.12, linewidth=0)
        one.set(title=column, xlabel="task t")
        one.xaxis.get_major_locator().set_params(integer=True)
    axes[0].set_ylabel("AA_t in %")
    name_lines(figure)
    return figure


def _means_and_errors(values: Iterable[Summary]) -> tuple[list[float], list[float]]:
    known = list(values)
    return _floats(v.mean for v in known), _floats(v.se for v in known)


def draw_loss(panels: Panels, looks: dict[str, Style]) -> Any:
    figure, axes = _panels(len(panels), looks)
    for one, (column, cells) in zip(axes, panels.items(), strict=True):
        for start in max((cell.task_starts[1:] for cell in cells.values()), key=len, default=[]):
            one.axvline(start, color="#dfe3e9", linewidth=0.8, zorder=0)
        for row, cell in cells.items():
            steps, values = cell.loss
            one.plot(steps, _floats(values), label=row, **_line(looks[row]))
        one.set(title=column, xlabel="training step")
        one.set_ylim(bottom=0)
    axes[0].set_ylabel("training loss")
    name_lines(figure)
    return figure


def draw_memory(datasets: ByDataset, looks: dict[str, Style]) -> Any:
    """A method that stores nothing is a level line."""
    figure, axes = _panels(len(datasets), looks)
    from matplotlib.ticker import LogLocator, NullFormatter

    for one, (dataset, rows) in zip(axes, datasets.items(), strict=True):
        for row, cells in rows.items():
            stored = sorted((cell for cell in cells if cell.memory), key=lambda cell: cell.memory or 0)
            means, errors = _means_and_errors(cell.faia for cell in stored or cells[:1] if cell.faia)
            look = _line(looks[row])
            if stored:
                at = [(cell.memory or 0) / 1e6 for cell in stored]
                one.plot(at, means, label=row, marker="o", markersize=3, markeredgewidth=0, **look)
                one.errorbar(at, means, yerr=errors, fmt="none", ecolor=looks[row].light, elinewidth=0.8, alpha=0.6)
            elif means == means:
                one.axhline(means[0], label=row, **look)
        one.set(title=dataset, xlabel="memory in MB", xscale="log")
        # Plain numbers: the log axis' own are formulas, and formulas are off.
        one.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        one.xaxis.set_major_formatter("{x:g}")
        one.xaxis.set_minor_formatter(NullFormatter())
    axes[0].set_ylabel("FAIA in %")
    name_lines(figure)
    return figure


def draw_gradients(panels: Panels) -> Any:
    """For each column of the table the errors, and below them the cosines."""
    measured = {column: {r: c for r, c in cells.items() if c.gradients} for column, cells in panels.items()}
    measured = {column: cells for column, cells in measured.items() if cells}
    rows = list(dict.fromkeys(row for cells in measured.values() for row in cells))
    size = (2.3 * len(rows) + 1.6, 3.2 * len(measured) + 0.9)
    figure, grid = pyplot().subplots(
        2 * len(measured), len(rows), figsize=size, squeeze=False, sharex=True, sharey="row", layout="constrained"
    )
    for pair, (column, cells) in enumerate(measured.items()):
        for axes_of, kind in zip(grid[2 * pair : 2 * pair + 2], ("error", "cosine"), strict=True):
            for axes, row in zip(axes_of, rows, strict=True):
                if row in cells:
                    draw_measured(axes, cells[row].gradients, kind)
                    axes.axhline(1, color=GREY[0], linewidth=0.6)
            axes_of[0].set_ylabel(f"{column}\n{kind}".strip())
            if kind == "error":
                axes_of[0].set_ylim(bottom=0)
    for axes, row in zip(grid[0], rows, strict=True):
        axes.set_title(row, fontsize=NAME_SIZE)
    for axes in grid[-1]:
        axes.set_xlabel("training step")
    found = [axes.get_legend_handles_labels() for axes in grid.flat]
    figure.legend(*max(found, key=lambda handles: len(handles[1])), loc="outside right center", fontsize=NAME_SIZE)
    return figure


def draw_measured(axes: Any, gradients: dict[str, list[Any]], kind: str) -> None:
    """What `--dgc_diagnostics` measured: a line for each task, because buffer and past change in between."""
    for estimate, (name, colour, dash, width) in ESTIMATES.items():
        values = gradients.get(f"{estimate}_{kind}")
        if values is None:
            continue
        for number, task in enumerate(dict.fromkeys(gradients["task"])):
            part = [i for i, of in enumerate(gradients["task"]) if of == task]
            at, measured = [gradients["at"][i] for i in part], _floats(values[i] for i in part)
            look = {"color": colour, "linestyle": (0, dash) if dash else "-", "linewidth": width}
            axes.plot(at, measured, label=name if number == 0 else None, marker=".", markersize=3, **look)


def _floats(values: Iterable[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def draw_matrices(panels: Panels) -> Any:
    """All matrices are meshes in one pair of axes: hundreds of axes would take minutes."""
    from matplotlib.colors import LinearSegmentedColormap

    from utils.run.heatmap import COLOURS

    rows = list(dict.fromkeys(row for cells in panels.values() for row, cell in cells.items() if cell.matrix))
    shown = [cell.matrix for cells in panels.values() for cell in cells.values() if cell.matrix]
    tasks = max(map(len, shown))
    highest = max(value for matrix in shown for row in matrix for value in row if value is not None)
    size = (TILE * len(panels) + LETTER * max(map(len, rows)) + 1.4, TILE * len(rows) + 1)
    figure, axes = pyplot().subplots(figsize=size, layout="constrained")
    colours, pitch, mesh = LinearSegmentedColormap.from_list("accuracy", COLOURS / 255), GAP * tasks, None
    for i, cells in enumerate(panels.values()):
        for j, row in enumerate(rows):
            if row in cells and cells[row].matrix:
                mesh = _tile(axes, cells[row].matrix, i * pitch, j * pitch, {"cmap": colours, "vmax": highest})
    names = [column.replace(", ", "\n") for column in panels]
    axes.set_xticks([i * pitch + tasks / 2 for i in range(len(panels))], names, fontsize=7)
    axes.set_yticks([j * pitch + tasks / 2 for j in range(len(rows))], rows, fontsize=NAME_SIZE)
    axes.set(xlim=(0, len(panels) * pitch), ylim=(len(rows) * pitch, 0))
    axes.grid(False)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    figure.colorbar(mesh, ax=axes, label="accuracy in %", shrink=min(1, 2 / len(rows)), aspect=12).outline.set_visible(
        False
    )
    return figure


def _tile(axes: Any, matrix: list[list[float | None]], left: float, top: float, look: dict[str, Any]) -> Any:
    import numpy as np

    tasks = len(matrix)
    tile = np.full((tasks, tasks), np.nan)
    for i, values in enumerate(matrix):
        tile[i, : len(values)] = _floats(values)
    place = (np.arange(tasks + 1) + left, np.arange(tasks + 1) + top)
    return axes.pcolormesh(*place, tile, vmin=0, edgecolors="white", linewidth=0.3, **look)
