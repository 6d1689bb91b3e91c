"""The figures of a report, drawn by matplotlib in panels of one size: the page, Markdown and files show the same ones.

Lines are drawn twice, once with the pairs alone (view `pairs`) and once with every method (view `all`).
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, zip_longest
from operator import methodcaller
from pathlib import Path
from typing import Any

from experiments.report import styles
from experiments.report.aggregate import CellMeans, Values, cell_of
from experiments.report.benchmarks import benchmarks
from experiments.report.styles import NAME_SIZE, Style, accuracy_colours, main_pairs, name_lines, pyplot, wrapped
from experiments.report.tables import Column, bases, columns, full_name, heading, slug
from experiments.results.collection import Results
from experiments.results.statistics import Summary
from utils.resume.files import atomic_write
from utils.run.look import BLUE, GREY, INK, LINE

FOLDER = "figures"
PAIRS, ALL = "pairs", "all"
CAPTIONS = {
    "accuracy": "AA_t, the mean Class-IL accuracy in % on the tasks seen, after each task t: mean over seeds; bands, "
    "for methods in colour with several seeds: ± one standard error. Where each pair has axes of its own, titled "
    "“method − base”, the method is solid, its base dashed, and grey is the range of all rows. Where all lines share "
    "axes, the dashed ones are bases.",
    "matrices": "Class-IL accuracy in % on task j (across) after task i (down): mean over seeds; beside a base and the "
    "method compared with it, their difference (purple: higher, orange: lower). All matrices of a panel share a scale; "
    "each difference has its own, written above it.",
    "memory": "FAIA: mean over seeds; bars, with several seeds: ± one standard error. Memory is the network at the end "
    "of a run (4 bytes per parameter) plus all that the method keeps besides: buffer, calibration vectors, copies of "
    "the network. A horizontal line is a method that stores nothing.",
    "loss": "Cross-entropy over all training images of the tasks so far, un-augmented, over the training steps "
    "(--loss_diagnostics): mean over seeds.",
    "gradients": "Relative error ‖estimate − true‖ / ‖true‖ and cosine of gradient estimates over the training steps: "
    "mean over seeds. True is the gradient over all past data; at an error of 1 an estimate is no better than none.",
}
WIDTH = 4.4  # inches of a panel
LEFT, RIGHT, TOP, BOTTOM = 0.58, 0.12, 0.3, 0.42  # inches around the axes
HEIGHT = 2.6
LETTER, NAME_HEIGHT = 0.056, 0.13  # inches of a name
TILE, TILE_GAP, TILE_LETTERS = 0.92, 0.1, 21  # inches of a matrix and above its title, and letters in a line of that
ACROSS = 3  # matrices in a row: a base, the method compared with it, and the difference
MOST_TILES = 5 * ACROSS  # of a panel, which is to fit on a printed page
MOST_LINES = 8  # that axes show
AXES_HEIGHT, AXES_GAP, AXES_LETTERS = 1.1, 0.12, 31  # inches of small axes; letters in a line of their titles
AXES_ACROSS, MOST_AXES = 2, 6  # small axes in a row and in a panel, at most
TITLE_LINE = 0.11  # inches of a line of the title of small axes or of a matrix
ESTIMATES = {
    "batch": ("one replay batch", GREY[0], (1, 2), 1.0),
    "buffer": ("whole buffer", INK[0], (6, 3), 1.2),
    "calibrated": ("calibrated", BLUE[0], None, 1.8),
}
Rows = dict[str, CellMeans]  # the cells of a column by row
Looks = dict[str, Style]


@dataclass(frozen=True)
class DrawnPanel:
    """`benchmark` is the group that it is shown in; `view` is empty if it belongs to both."""

    name: str  # of its files, without suffix
    benchmark: str
    kind: str
    view: str
    title: str
    dataset: str | None
    buffer: str | None
    svg: str
    png: bytes | None  # of what Markdown shows


def draw_panels(results: Sequence[Results], looks: Looks) -> list[DrawnPanel]:
    """All figures, benchmark by benchmark and kind by kind; a cell that several tables share is drawn once.

    No dates and no random names are in them, so that equal results make equal files.
    """
    found: list[DrawnPanel] = []
    for first, together in benchmarks(results):
        taken = {panel.benchmark for panel in found}
        for column, kind, view, figure in figures(together, looks):
            stem = slug("-".join(filter(None, [first.grid.name, column.name, kind, view])))
            known = {panel.name for panel in found}
            name = next(n for i in count(1) if (n := stem if i == 1 else f"{stem}-{i}") not in known)
            benchmark = column.dataset or first.grid.title
            benchmark += f": {heading(first.grid)}" if benchmark in taken else ""
            svg, png = _svg(figure, name), None if view == ALL else _saved(figure, metadata={"Software": None})
            found.append(
                DrawnPanel(name, benchmark, kind, view, full_name(column), column.dataset, column.buffer, svg, png)
            )
    order = list(dict.fromkeys(panel.benchmark for panel in found))
    return sorted(found, key=lambda panel: (order.index(panel.benchmark), list(CAPTIONS).index(panel.kind)))


def write_figures(panels: Iterable[DrawnPanel], directory: Path) -> None:
    for panel in panels:
        for suffix, content in (("svg", panel.svg.encode()), ("png", panel.png)):
            if content is not None:
                path = directory / FOLDER / f"{panel.name}.{suffix}"
                atomic_write(path, methodcaller("write", content), flag="--output")


def _svg(figure: Any, salt: str) -> str:
    """Text stays text. The salt is its own, so that names in one page do not clash."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt, "image.composite_image": False}):
        return _saved(figure, format="svg", metadata={"Date": None}, transparent=True).decode()


def _saved(figure: Any, **options: Any) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, **options)
    return content.getvalue()


def figures(result: Results, looks: Looks) -> Iterator[tuple[Column, str, str, Any]]:
    """What the runs have something for: column of the table (or its dataset), kind, view and figure."""
    rows, pairs = list(result.grid.rows), bases(result.grid)
    mains = main_pairs(pairs)
    by_dataset: dict[str | None, list[tuple[Column, Rows]]] = {}
    for column in columns(result.grid, ""):
        cells = {row: cell for row in rows if (cell := cell_of(result, row, column.name)) is not None}
        by_dataset.setdefault(column.dataset, []).append((column, cells))
        title = full_name(column)
        of_interest = {row for row in rows if looks[row].of_interest}
        for kind, has, draw, in_pairs in (
            ("accuracy", lambda c: c.average_accuracy, partial(draw_accuracy, bases=pairs), of_interest),
            ("matrices", _has_matrix, partial(draw_matrices, bases=pairs), {*mains, *mains.values()} or of_interest),
            ("loss", has_loss, lambda *shown, **named: [draw_loss(*shown, **named)], of_interest),
        ):
            for view, shown in _views({row: cell for row, cell in cells.items() if has(cell)}, in_pairs):
                yield from ((column, kind, view, figure) for figure in draw(shown, looks, title=title))
        for row, cell in cells.items():
            if cell.gradients:
                named = ": ".join(filter(None, [row, title]))
                yield column, "gradients", "" if row in of_interest else ALL, draw_gradients(cell, named)
    for dataset, members in by_dataset.items():
        if len({column.buffer for column, _ in members}) > 1:
            known = {r: [c[r] for _, c in members if r in c and c[r].faia and c[r].memory is not None] for r in rows}
            if any(cell.memory for cells in known.values() for cell in cells):
                place = Column(dataset or "", "", "", dataset, None)
                for view, shown in _views({row: cells for row, cells in known.items() if cells}, of_interest):
                    yield place, "memory", view, draw_memory(shown, looks, title=dataset or "")


def has_loss(cell: CellMeans) -> bool:
    """Over several tasks: joint training has one."""
    return len(set(cell.loss.get("task", ()))) > 1


def _has_matrix(cell: CellMeans) -> bool:
    """From the first task on: joint training has its last row only."""
    return bool(cell.matrix) and cell.matrix[0][0] is not None


def _views(rows: dict[str, Any], in_pairs: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The pairs and all methods, or one for both if there is nothing to leave out."""
    pairs = {row: value for row, value in rows.items() if row in in_pairs}
    if pairs and len(pairs) < len(rows):
        yield PAIRS, pairs
        yield ALL, rows
    elif rows:
        yield "", rows


def _panel(names: Sequence[str], title: str, x_label: str, y_label: str, parts: int = 1) -> tuple[Any, list[Any]]:
    """A figure with axes below each other, and room for the names of their lines at the right."""
    lines = [wrapped(name).split("\n") for name in names]
    room = RIGHT + LETTER * max(len(line) for name in lines for line in name) + 0.14
    height = max(HEIGHT, NAME_HEIGHT * sum(map(len, lines)) + TOP + BOTTOM) + (parts - 1) * 1.3
    figure = pyplot().figure(figsize=(WIDTH, height))
    edges = {"left": LEFT / WIDTH, "right": 1 - room / WIDTH, "top": 1 - TOP / height, "bottom": BOTTOM / height}
    axes = list(figure.subplots(parts, 1, squeeze=False, sharex=True, gridspec_kw=edges | {"hspace": 0.15}).flat)
    _title(figure, title)
    axes[-1].set_xlabel(x_label)
    axes[0].set_ylabel(y_label)
    return figure, axes


def _title(figure: Any, title: str) -> None:
    top = 1 - 0.05 / figure.get_figheight()
    figure.text(0.06 / WIDTH, top, title, va="top", fontsize=8.5, fontweight="bold")


def _line(style: Style) -> dict[str, Any]:
    dash = (0, style.dash) if style.dash else "-"
    return {"color": style.light, "linewidth": 0.8 * style.width, "linestyle": dash, "zorder": 2 + style.width}


def _groups(rows: Iterable[str], bases: dict[str, str] | None) -> list[tuple[str, ...]]:
    """Each pair, the base first; then the rows in none."""
    known = list(rows)
    pairs = [(base, row) for row, base in (bases or {}).items() if row in known and base in known]
    return [*pairs, *((row,) for row in known if not any(row in pair for pair in pairs))]


def _small_axes(groups: Sequence[Sequence[str]], looks: Looks, labels: Sequence[str]) -> tuple[Any, list[Any]]:
    """A figure with axes for each group, on the same scales and named after what they show."""
    lines = math.ceil(len(groups) / AXES_ACROSS)
    names = [wrapped(" − ".join(reversed(group)), AXES_LETTERS) for group in groups]
    room = TITLE_LINE * (2 + max(name.count("\n") for name in names))  # between axes, of which the last line is free
    height = TOP + BOTTOM + lines * (AXES_HEIGHT + room)
    figure = pyplot().figure(figsize=(WIDTH, height))
    edges = {"left": LEFT / WIDTH, "right": 1 - RIGHT / WIDTH, "top": 1 - (TOP + room - TITLE_LINE) / height}
    gaps = {"bottom": BOTTOM / height, "wspace": AXES_GAP, "hspace": room / AXES_HEIGHT}
    axes = list(figure.subplots(lines, AXES_ACROSS, sharex=True, sharey=True, gridspec_kw=edges | gaps).flat)
    for one, group, name in zip(axes, groups, names, strict=False):
        one.set_title(name, loc="left", color=looks[group[-1]].light, fontsize=NAME_SIZE - 0.5, pad=2, linespacing=1)
    for unused in axes[len(groups) :]:
        unused.remove()
    for last in axes[: len(groups)][-AXES_ACROSS:]:
        last.tick_params(labelbottom=True)
    _title(figure, labels[0])
    figure.supxlabel(labels[1], y=0.04 / height, fontsize=NAME_SIZE)
    figure.supylabel(labels[2], x=0.04 / WIDTH, fontsize=NAME_SIZE)
    return figure, axes[: len(groups)]


def draw_accuracy(cells: Rows, looks: Looks, title: str = "", bases: dict[str, str] | None = None) -> Iterator[Any]:
    """Lines with their names at the ends; of many methods, axes for each pair and each other one, a few to a figure."""
    labels = (title, "tasks seen", "AA_t in %")
    if len(cells) <= MOST_LINES:
        figure, (axes,) = _panel(list(cells), *labels)
        _draw_accuracies(axes, cells, looks)
        name_lines(figure)
        yield figure
        return
    groups = _groups(cells, bases)
    means = zip_longest(*(_means_and_errors(cell.average_accuracy)[0] for cell in cells.values()), fillvalue=math.nan)
    known = [[mean for mean in by_task if mean == mean] or [math.nan] for by_task in means]
    tasks, lowest, highest = range(1, len(known) + 1), list(map(min, known)), list(map(max, known))
    reached = [mean for by_task in known for mean in by_task if mean == mean]
    size = math.ceil(len(groups) / math.ceil(len(groups) / MOST_AXES))
    for start in range(0, len(groups), size):
        part = groups[start : start + size]
        figure, small = _small_axes(part, looks, labels)
        for axes, group in zip(small, part, strict=True):
            axes.fill_between(tasks, lowest, highest, color=LINE[0], alpha=0.6, linewidth=0, zorder=1)
            dashes = (styles.BASE_DASH, None) if len(group) > 1 else (looks[group[0]].dash,)
            pair = {row: replace(looks[row], dash=dash) for row, dash in zip(group, dashes, strict=True)}
            _draw_accuracies(axes, {row: cells[row] for row in group}, pair)
        small[0].set_ylim(min(reached) - 2, max(reached) + 2)  # the same in all figures
        yield figure


def _draw_accuracies(axes: Any, cells: Rows, looks: Looks) -> None:
    for row, cell in cells.items():
        tasks = range(1, len(cell.average_accuracy) + 1)
        means, errors = _means_and_errors(cell.average_accuracy)
        axes.plot(tasks, means, label=row, marker="o", markersize=2.5, markeredgewidth=0, **_line(looks[row]))
        if looks[row].of_interest:
            low, high = ([m + sign * e for m, e in zip(means, errors, strict=True)] for sign in (-1, 1))
            axes.fill_between(tasks, low, high, color=looks[row].light, alpha=0.15, linewidth=0)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _means_and_errors(values: Iterable[Summary]) -> tuple[list[float], list[float]]:
    known = list(values)
    return _floats(v.mean for v in known), _floats(v.se for v in known)


def draw_loss(cells: Rows, looks: Looks, title: str = "") -> Any:
    figure, (axes,) = _panel(list(cells), title, "training step", "loss over all images so far")
    for row, cell in cells.items():
        axes.plot(cell.loss["at"], _floats(cell.loss["seen"]), label=row, **_line(looks[row]))
    axes.set_ylim(bottom=0)
    name_lines(figure)
    return figure


def draw_memory(rows: dict[str, list[CellMeans]], looks: Looks, title: str = "") -> Any:
    """A method that stores nothing is a level line."""
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, (axes,) = _panel(list(rows), title, "memory in MB", "FAIA in %")
    for row, cells in rows.items():
        stored = sorted((cell for cell in cells if cell.memory), key=lambda cell: cell.memory or 0)
        means, errors = _means_and_errors(cell.faia for cell in stored or cells[:1] if cell.faia)
        if stored:
            at = [(cell.memory or 0) / 1e6 for cell in stored]
            axes.plot(at, means, label=row, marker="o", markersize=3, markeredgewidth=0, **_line(looks[row]))
            axes.errorbar(at, means, yerr=errors, fmt="none", ecolor=looks[row].light, elinewidth=0.8, alpha=0.6)
        else:
            axes.axhline(means[0], label=row, **_line(looks[row]))
    axes.set_xscale("log")
    # Plain numbers: the log axis' own are formulas, and formulas are off.
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    name_lines(figure)
    return figure


def draw_gradients(cell: CellMeans, title: str = "") -> Any:
    """The relative errors, and below them the cosines."""
    names = [name for name, *_ in ESTIMATES.values()]
    figure, axes = _panel(names, title, "training step", "relative error", parts=2)
    for one, kind in zip(axes, ("error", "cosine"), strict=True):
        draw_measured(one, cell.gradients, kind)
        one.axhline(1, color=GREY[0], linewidth=0.6)
    axes[0].set_ylim(bottom=0)
    axes[1].set_ylabel("cosine")
    name_lines(figure)
    return figure


def draw_measured(axes: Any, gradients: dict[str, list[Any]], kind: str) -> None:
    """What `--dgc_diagnostics` measured: one line per task, because buffer and past change in between."""
    tasks = list(dict.fromkeys(gradients["task"]))
    for estimate, (name, colour, dash, width) in ESTIMATES.items():
        values = gradients.get(f"{estimate}_{kind}")
        if values is None:
            continue
        for task in tasks:
            part = [i for i, of in enumerate(gradients["task"]) if of == task]
            at, measured = [gradients["at"][i] for i in part], _floats(values[i] for i in part)
            look = {"color": colour, "linestyle": (0, dash) if dash else "-", "lw": width, "zorder": 2 + bool(dash)}
            axes.plot(at, measured, label=name if task == tasks[-1] else None, marker=".", markersize=3, **look)


def _floats(values: Iterable[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def draw_matrices(cells: Rows, looks: Looks, title: str = "", bases: dict[str, str] | None = None) -> Iterator[Any]:
    """For each pair the base, the method and the difference; then the methods without a pair: as many to a figure as
    a page holds, all on one scale.
    """
    import numpy as np

    square = {row: _square(cell.matrix) for row, cell in cells.items()}
    alike = {r: b for r, b in (bases or {}).items() if {r, b} <= square.keys() and square[r].shape == square[b].shape}
    tiles: list[tuple[str, Any, float | None]] = []  # name, values, and how far from 0 they are if a difference
    for group in _groups(square, alike):
        tiles += [(row, square[row], None) for row in group]
        if len(group) > 1:
            change = square[group[1]] - square[group[0]]
            reach = np.nanmax(np.abs(change)) or 1
            tiles.append((f"difference, ±{reach:.0f}", change, reach))
    highest = max(np.nanmax(values) for values in square.values()) or 1
    for start in range(0, len(tiles), MOST_TILES):
        yield _tiled(tiles[start : start + MOST_TILES], title, highest)


def _square(matrix: list[Values]) -> Any:
    import numpy as np

    square = np.full((len(matrix), len(matrix)), np.nan)
    for i, values in enumerate(matrix):
        square[i, : len(values)] = _floats(values)
    return square


def _tiled(tiles: list[tuple[str, Any, float | None]], title: str, highest: float) -> Any:
    """All matrices are images in one pair of axes, in inches: axes of their own would take seconds."""
    names = [wrapped(name, TILE_LETTERS) for name, *_ in tiles]
    room = TILE_GAP + TITLE_LINE * (1 + max(name.count("\n") for name in names))
    height = math.ceil(len(tiles) / ACROSS) * (TILE + room) + 0.25
    figure = pyplot().figure(figsize=(WIDTH, height))
    _title(figure, title)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    accuracy = {"vmin": 0, "vmax": highest, "cmap": accuracy_colours()}
    for number, (name, (_, values, reach)) in enumerate(zip(names, tiles, strict=True)):
        left = 0.1 + number % ACROSS * (WIDTH - 0.6) / ACROSS
        top = 0.2 + number // ACROSS * (TILE + room) + room
        place = {"extent": (left, left + TILE, top + TILE, top), "interpolation": "none", "aspect": "auto"}
        if reach is None:
            image = axes.imshow(values, **accuracy, **place)
        else:
            axes.imshow(values, vmin=-reach, vmax=reach, cmap="PuOr", **place)
        axes.text(left, top - 0.03, name, fontsize=NAME_SIZE - 1, va="bottom", linespacing=1)
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    beside = ((WIDTH - 0.5) / WIDTH, 1 - (0.2 + room + TILE) / height, 0.08 / WIDTH, TILE / height)
    bar = figure.colorbar(image, cax=figure.add_axes(beside), format="%.0f %%", ticks=[0, highest])
    bar.ax.tick_params(labelsize=NAME_SIZE - 1, length=0, pad=2)
    bar.outline.set_visible(False)
    return figure
