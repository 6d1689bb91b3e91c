"""The figures of a report, drawn by matplotlib, which is imported only here."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

from experiments.report.aggregate import Cell
from experiments.report.frame import Words, frame
from experiments.report.styles import Style
from experiments.results.statistics import Summary

PER_ROW = 3
SIZE = (3.4, 2.6)  # of a panel, in inches
SINGLE = (5.2, 3.4)  # if there is but one
LETTER, LINE = 0.06, 0.165  # inches of a name
ABOVE, BELOW = 0.32, 0.5  # inches of the names above the axes and below them
BANDS = 6  # more of them hide each other
TILE, TILE_HEAD = 1.05, 0.4  # inches of a matrix, and of the names above them all
SCALE = 1.4  # inches of the scale of colours, at most
GAP = 1.15  # from one matrix to the next, in matrices
ESTIMATES = {
    "batch": ("one replay batch", "#8a93a3", (1, 2), 1.0),
    "buffer": ("whole buffer", "#1b1f27", (6, 3), 1.2),
    "calibrated": ("calibrated", "#1f57b0", None, 1.8),
}
LOOK: Any = {  # of matplotlib's settings
    "figure.dpi": 150,  # also when words are measured
    "savefig.dpi": "figure",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a93a3",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e8ebf0",
    "xtick.color": "#565e6c",
    "ytick.color": "#565e6c",
    "axes.labelcolor": "#565e6c",
    "legend.frameon": False,
    "lines.scale_dashes": False,
    "text.parse_math": False,  # names come from files: a $ is a $
    "svg.hashsalt": "report",
}


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        from utils.errors import UserError

        raise UserError("figures need matplotlib, which is missing: pip install matplotlib") from None
    matplotlib.use("Agg")
    matplotlib.rcParams.update(LOOK)
    from matplotlib import pyplot

    pyplot.close("all")  # the figure before is saved
    return pyplot


def _panels(count: int, words: Words, names: Collection[str], **shared: Any) -> tuple[Any, list[Any]]:
    """A figure with so many axes, and room for the names on the right."""
    room = 0.8 + LETTER * max(map(len, names))
    across, size = min(PER_ROW, count), SINGLE if count == 1 else SIZE
    down = math.ceil(count / across)
    width, inside = across * size[0] + room, max(down * size[1] + 0.2, ABOVE + LINE * len(names) + BELOW)
    figure, grid = _pyplot().subplots(down, across, figsize=(width, inside), squeeze=False, **shared)
    above, below = frame(figure, words, inside)
    height = figure.get_figheight()
    top, bottom = 1 - (above + ABOVE) / height, (below + BELOW) / height
    figure.subplots_adjust(left=0.62 / width, right=1 - (room + 0.1) / width, top=top, bottom=bottom, hspace=0.5)
    axes = list(grid.flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def _line(style: Style) -> dict[str, Any]:
    dash = (0, style.dash) if style.dash else "-"
    above = 3 if style.dash else 2  # a broken line shows what is below it
    return {"color": style.light, "linewidth": 0.8 * style.width, "linestyle": dash, "zorder": above}


def _names(figure: Any, axes: list[Any], looks: dict[str, Style]) -> None:
    """One legend for all panels; a single panel has its names at the ends of the lines."""
    if len(axes) == 1:
        _at_ends(axes[0], looks)
        return
    handles: dict[str, Any] = {}
    for one in axes:
        for line in _lines(one, looks):
            handles.setdefault(line.get_label(), line)
    last = axes[min(PER_ROW, len(axes)) - 1].get_position()
    place = {"loc": "upper left", "bbox_to_anchor": (last.x1, last.y1 + 0.07 / figure.get_figheight())}
    figure.legend(handles.values(), handles.keys(), handlelength=2.8, fontsize=7.5, **place)


def _lines(axes: Any, looks: dict[str, Style]) -> list[Any]:
    """Those of rows: matplotlib itself leaves out what begins with an underscore."""
    return [line for line in axes.get_lines() if line.get_label() in looks]


def _at_ends(axes: Any, looks: dict[str, Style]) -> None:
    ends = [(next((y for y in reversed(line.get_ydata()) if y == y), None), line) for line in _lines(axes, looks)]
    known = sorted(((y, line) for y, line in ends if y is not None), key=lambda end: end[0])
    low, high = axes.get_ylim()
    gap = (high - low) * LINE / (axes.get_position().height * axes.figure.get_figheight())
    places: list[float] = []
    for y, _ in known:
        places.append(max(y, places[-1] + gap) if places else y)
    top = high + gap
    for i in reversed(range(len(places))):
        top = places[i] = min(places[i], top - gap)
    right = axes.get_yaxis_transform()
    for place, (_, line) in zip(places, known, strict=True):
        marker = {"marker": line.get_marker(), "markevery": [1], "markersize": 3, "markeredgewidth": 0}
        look = _line(looks[line.get_label()]) | marker
        axes.plot([1.02, 1.05, 1.08], [place] * 3, transform=right, clip_on=False, **look)
        axes.text(1.095, place, line.get_label(), transform=right, va="center", fontsize=7.5)
    axes.set_ylim(low, high)


def accuracy(panels: dict[str, dict[str, Cell]], looks: dict[str, Style], words: Words) -> Any:
    figure, axes = _panels(len(panels), words, looks, sharey=True)
    for one, (column, cells) in zip(axes, panels.items(), strict=True):
        for row, cell in cells.items():
            at = [float(task) for task in range(1, len(cell.average_accuracy) + 1)]
            _means(one, row, at, cell.average_accuracy, looks[row])
            if with_bands(cells):
                _band(one, at, cell.average_accuracy, looks[row])
        one.set(title=column, xlabel="task t")
        one.xaxis.get_major_locator().set_params(integer=True)
    axes[0].set_ylabel("AA_t in %")
    _names(figure, axes, looks)
    return figure


def with_bands(cells: Collection[str]) -> bool:
    """Whether the standard errors of a panel's rows are drawn over the tasks."""
    return len(cells) <= BANDS


def _means(axes: Any, row: str, at: list[float], values: list[Summary], style: Style) -> None:
    look = {"marker": style.marker, "markersize": 3, "markeredgewidth": 0} | _line(style)
    axes.plot(at, _floats(v.mean for v in values), label=row, **look)


def _band(axes: Any, at: list[float], values: list[Summary], style: Style) -> None:
    """Mean ± standard error as an area, and as a bar where a point has no neighbour."""
    means, errors = _floats(v.mean for v in values), _floats(v.se for v in values)
    low, high = ([m + sign * e for m, e in zip(means, errors, strict=True)] for sign in (-1, 1))
    axes.fill_between(at, low, high, color=style.light, alpha=0.1, linewidth=0)
    beside = [math.nan, *errors, math.nan]
    lone = [i for i in range(len(at)) if math.isnan(beside[i]) and math.isnan(beside[i + 2])]
    _bars(axes, [at[i] for i in lone], [values[i] for i in lone], style)


def _bars(axes: Any, at: list[float], values: list[Summary], style: Style) -> None:
    """Mean ± standard error where there is one."""
    known = [(x, v.mean, v.se) for x, v in zip(at, values, strict=True) if v.mean is not None and v.se is not None]
    if known:
        x, y, error = zip(*known, strict=True)
        axes.errorbar(x, y, yerr=error, fmt="none", ecolor=style.light, elinewidth=0.8, capsize=2, alpha=0.6)


def loss(panels: dict[str, dict[str, Cell]], looks: dict[str, Style], words: Words) -> Any:
    figure, axes = _panels(len(panels), words, looks)
    for one, (column, cells) in zip(axes, panels.items(), strict=True):
        for start in max((cell.task_starts[1:] for cell in cells.values()), key=len, default=[]):
            one.axvline(start, color="#dfe3e9", linewidth=0.8, zorder=0)
        for row, cell in cells.items():
            steps, values = cell.loss
            one.plot(steps, _floats(values), label=row, **_line(looks[row]))
        one.set(title=column, xlabel="training step")
        one.set_ylim(bottom=0)
    axes[0].set_ylabel("training loss")
    _names(figure, axes, looks)
    return figure


def memory(datasets: dict[str, dict[str, list[Cell]]], looks: dict[str, Style], words: Words) -> Any:
    figure, axes = _panels(len(datasets), words, looks)
    from matplotlib.ticker import LogLocator, NullFormatter

    for one, (dataset, rows) in zip(axes, datasets.items(), strict=True):
        for row, cells in rows.items():
            stored = sorted((cell for cell in cells if cell.memory), key=lambda cell: cell.memory or 0)
            values = [cell.faia for cell in stored or cells[:1] if cell.faia]
            if stored:
                at = [(cell.memory or 0) / 1e6 for cell in stored]
                _means(one, row, at, values, looks[row])
                _bars(one, at, values, looks[row])
            else:
                _level(one, row, values[0], looks[row])
        one.set(title=dataset, xlabel="memory in MB", xscale="log")
        # Plain numbers: the log axis' own are formulas, and formulas are off.
        one.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        one.xaxis.set_major_formatter("{x:g}")
        one.xaxis.set_minor_formatter(NullFormatter())
    axes[0].set_ylabel("FAIA in %")
    _names(figure, axes, looks)
    return figure


def _level(axes: Any, row: str, value: Summary, style: Style) -> None:
    if value.mean is None:
        return
    axes.axhline(value.mean, label=row, **_line(style))
    if value.se is not None:
        axes.axhspan(value.mean - value.se, value.mean + value.se, color=style.light, alpha=0.1, linewidth=0)


def gradients(panels: dict[str, dict[str, Cell]], words: Words) -> Any:
    """Of each column of the table the errors, and below them the cosines."""
    measured = {column: {r: c for r, c in cells.items() if c.gradients} for column, cells in panels.items()}
    measured = {column: cells for column, cells in measured.items() if cells}
    rows = list(dict.fromkeys(row for cells in measured.values() for row in cells))
    size = (2.1 * len(rows) + 1.7, 3.2 * len(measured) + 0.4)
    figure, grid = _pyplot().subplots(2 * len(measured), len(rows), figsize=size, squeeze=False, sharex=True)
    for pair, (column, cells) in enumerate(measured.items()):
        for axes_of, kind in zip(grid[2 * pair : 2 * pair + 2], ("error", "cosine"), strict=True):
            for axes, row in zip(axes_of, rows, strict=True):
                if row in cells:
                    _measured(axes, cells[row], kind)
                    axes.axhline(1, color="#8a93a3", linewidth=0.6)
            _same_limits(axes_of, bottom=0 if kind == "error" else None)
            axes_of[0].set_ylabel(f"{column}\n{kind}")
    for axes, row in zip(grid[0], rows, strict=True):
        axes.set_title(row, fontsize=7.5)
    for axes in grid[-1]:
        axes.set_xlabel("training step")
    found = [axes.get_legend_handles_labels() for axes in grid.flat]
    figure.legend(*max(found, key=lambda handles: len(handles[1])), loc="center right", fontsize=7.5)
    above, below = frame(figure, words, size[1])
    height = figure.get_figheight()
    figure.tight_layout(rect=(0, below / height, 1 - 1.5 / size[0], 1 - above / height))
    return figure


def _same_limits(axes: Iterable[Any], bottom: float | None) -> None:
    limits = [one.get_ylim() for one in axes]
    low, high = min(low for low, _ in limits), max(high for _, high in limits)
    for one in axes:
        one.set_ylim(low if bottom is None else bottom, high)


def _measured(axes: Any, cell: Cell, kind: str) -> None:
    """A line for each task, because all that is measured changes in between."""
    for estimate, (name, colour, dash, width) in ESTIMATES.items():
        values = cell.gradients.get(f"{estimate}_{kind}")
        if values is None:
            continue
        for number, task in enumerate(dict.fromkeys(cell.gradients["task"])):
            part = [i for i, of in enumerate(cell.gradients["task"]) if of == task]
            at, measured = [cell.gradients["at"][i] for i in part], _floats(values[i] for i in part)
            look = {"color": colour, "linestyle": (0, dash) if dash else "-", "linewidth": width}
            axes.plot(at, measured, label=name if number == 0 else None, marker=".", markersize=3, **look)


def _floats(values: Iterable[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def matrices(panels: dict[str, dict[str, Cell]], words: Words) -> Any:
    """All matrices are meshes in one pair of axes: hundreds of axes would take minutes."""
    from matplotlib.colors import LinearSegmentedColormap

    from utils.run.heatmap import COLOURS

    rows = list(dict.fromkeys(row for cells in panels.values() for row, cell in cells.items() if cell.matrix))
    tasks = max(len(cell.matrix) for cells in panels.values() for cell in cells.values())
    across, down = TILE * len(panels), TILE * len(rows)
    names_width = 0.3 + LETTER * max(map(len, rows))
    width = across + names_width + 0.9
    figure = _pyplot().figure(figsize=(width, down))
    _, below = frame(figure, words, TILE_HEAD + down + 0.1)
    height, bottom = figure.get_figheight(), below + 0.1
    axes = figure.add_axes((names_width / width, bottom / height, across / width, down / height))
    mesh = None
    for i, cells in enumerate(panels.values()):
        for j, row in enumerate(rows):
            if row in cells and cells[row].matrix:
                colours = LinearSegmentedColormap.from_list("accuracy", COLOURS / 255)
                mesh = _tile(axes, cells[row], i * GAP * tasks, j * GAP * tasks, colours)
    pitch = GAP * tasks
    names = [column.replace(", ", "\n") for column in panels]
    axes.set_xticks([i * pitch + tasks / 2 for i in range(len(panels))], names, fontsize=7)
    axes.set_yticks([j * pitch + tasks / 2 for j in range(len(rows))], rows, fontsize=7.5)
    axes.set(xlim=(0, len(panels) * pitch), ylim=(len(rows) * pitch, 0))
    axes.grid(False)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    long = min(SCALE, down)
    scale = figure.add_axes((1 - 0.75 / width, (bottom + down - long) / height, 0.1 / width, long / height))
    figure.colorbar(mesh, cax=scale, label="accuracy in %").outline.set_visible(False)
    return figure


def _tile(axes: Any, cell: Cell, left: float, top: float, colours: Any) -> Any:
    import numpy as np

    tasks = len(cell.matrix)
    tile = np.full((tasks, tasks), np.nan)
    for i, values in enumerate(cell.matrix):
        tile[i, : len(values)] = _floats(values)
    place = (np.arange(tasks + 1) + left, np.arange(tasks + 1) + top)
    return axes.pcolormesh(*place, tile, cmap=colours, vmin=0, vmax=100, edgecolors="white", linewidth=0.3)
