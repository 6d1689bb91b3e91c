"""What a wandb dashboard of some tables consists of, as data: which runs, how they are grouped, which panels.

wandb does not know rows of tables. A run is found by the tags under which `reproduce.py run` files it (table, profile,
row, column), and the seeds of a row are put together by the settings that tell the rows apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.cells import Cell, wandb_tag
from experiments.grid import Grid
from experiments.report.tables import PAIRS, bases, heading, pair_rows, table
from experiments.results.collection import Results
from utils.run.identity import relevant_config

# The keys under which a run logs (utils/run/wandb_logger.py). A test looks them up in what a run has logged.
TASK, AVERAGE, AVERAGE_TASK_IL, MATRIX, LOSS = "Task", "AA", "RESULT_task_mean_accs", "accuracy_matrix", "loss"
ERRORS = tuple(f"diagnostics/{of}_error" for of in ("batch", "buffer", "calibrated"))
ESTIMATES = ("one replay batch", "the buffer", "the calibrated estimate")  # in words
COSINES = tuple(f"diagnostics/{of}_cosine" for of in ("batch", "buffer", "calibrated"))
BEST_ALPHA = "diagnostics/alpha_star"

LINES, BARS, IMAGES, TEXT = "lines", "bars", "images", "text"
STEP = "Step"  # wandb's own name of the number of steps made
OF_EVERY_TABLE = ("FAIA", "FAA", "FF")
FIRST_KEYS = ("dataset", "buffer_size", "model")
NO_PAIR = "Differences are taken from run directories. Where this was laid out, no pair of these runs was finished."


@dataclass(frozen=True)
class Panel:
    """One chart. `keys` are what runs log, of bars what stands in their summaries; a text has none."""

    kind: str
    title: str
    keys: tuple[str, ...] = ()
    x: str = STEP
    x_title: str = ""
    smoothing: float = 0.0
    text: str = ""


@dataclass(frozen=True)
class Runs:
    """Runs with, of every group of tags, one at least; those that agree in all the settings `by` are one curve."""

    name: str
    tags: tuple[tuple[str, ...], ...]
    by: tuple[str, ...]
    curves: int


@dataclass(frozen=True)
class Section:
    name: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Block:
    """A part of a report: a heading, a text and panels about some runs, each where there are any."""

    title: str
    level: int
    text: str = ""
    runs: Runs | None = None
    panels: tuple[Panel, ...] = ()


@dataclass(frozen=True)
class Dashboard:
    """A workspace, in which all runs of the tables are browsed, and a report with a chapter for each column."""

    title: str
    runs: Runs
    sections: tuple[Section, ...]
    blocks: tuple[Block, ...]


def dashboard(results: Sequence[Results]) -> Dashboard:
    """For the tables that some results are of; differences are as far as the runs are finished and at hand."""
    grids = [result.grid for result in results]
    cells = [cell for result in results for cell in result.expansion.cells]
    profiles = tuple(dict.fromkeys(wandb_tag(grid.profile) for grid in grids if grid.profile))
    tags = (tuple(wandb_tag(grid.name) for grid in grids), profiles, _tags(row for grid in grids for row in grid.rows))
    by = telling_settings(cells, FIRST_KEYS)
    differing = "\n\n".join(dict.fromkeys(filter(None, map(differences, results))))
    return Dashboard(
        ", ".join([*(grid.name for grid in grids), *profiles]),
        Runs("all runs", tuple(filter(None, tags)), by, _curves(cells, by)),
        tuple(_sections(_metrics(grids), _measures_gradients(cells), differing)),
        tuple(block for result in results for block in _chapter(result)),
    )


# -- panels ------------------------------------------------------------------------------------------------------------


ACCURACIES = (
    Panel(LINES, "AA: mean Class-IL accuracy on the tasks seen (%)", (AVERAGE,), TASK, "tasks learnt, from 0"),
    Panel(LINES, "The same in Task-IL (%)", (AVERAGE_TASK_IL,), TASK, "tasks learnt, from 0"),
)
LOSSES = (Panel(LINES, "Training loss", (LOSS,), smoothing=0.9),)
MATRICES = (Panel(IMAGES, "Accuracy on every task after every task", (MATRIX,)),)
GRADIENTS = (
    *(Panel(LINES, f"Relative error of {name}", (key,)) for name, key in zip(ESTIMATES, ERRORS, strict=True)),
    *(Panel(LINES, f"Cosine of {name}", (key,)) for name, key in zip(ESTIMATES, COSINES, strict=True)),
    Panel(LINES, "α*: the best multiple of the correction", (BEST_ALPHA,)),
)


def _bars(metrics: Iterable[str]) -> tuple[Panel, ...]:
    return tuple(Panel(BARS, f"{name}: mean ± standard error over seeds", (summary_key(name),)) for name in metrics)


def _sections(metrics: Sequence[str], measured: bool, differing: str) -> Iterable[Section]:
    yield Section("Results", _bars(metrics))
    if differing:
        yield Section("DGC − base", (Panel(TEXT, "Differences seed by seed", text=differing),))
    yield Section("Accuracy over the tasks", ACCURACIES)
    yield Section("Accuracy matrices", MATRICES)
    if measured:
        yield Section("Errors of gradients", GRADIENTS)
    yield Section("Training", LOSSES)


def summary_key(metric: str) -> str:
    """The name in a run's summary of what a table calls `FAIA Task-IL`."""
    return metric.replace(" Task-IL", "_task_il")


def _metrics(grids: Iterable[Grid]) -> list[str]:
    return list(dict.fromkeys([*OF_EVERY_TABLE, *(metric for grid in grids for metric in grid.metrics)]))


# -- chapters of a report ----------------------------------------------------------------------------------------------


def _chapter(results: Results) -> Iterable[Block]:
    """A table: its differences, then for each column all methods, and the pairs by themselves."""
    grid = results.grid
    yield Block(heading(grid), 1, "\n\n".join(filter(None, [grid.conditions, differences(results)])))
    pairs = bases(grid)
    paired = [row for row in grid.rows if row in pairs or row in pairs.values()]
    for column in grid.columns:
        cells = [cell for cell in results.expansion.cells if cell.column == column]
        if not cells:
            continue
        panels = (*_bars(_metrics([grid])), *ACCURACIES, *LOSSES, *MATRICES)
        panels += GRADIENTS if _measures_gradients(cells) else ()
        yield Block(column or "All methods", 2, "", _column_runs(grid, column, list(grid.rows), cells), panels)
        compared = [cell for cell in cells if cell.row in paired]
        if compared:
            title = f"DGC − base{f', {column}' if column else ''}"
            runs = _column_runs(grid, column, paired, compared)
            yield Block(title, 3, ", ".join(f"{row} − ({base})" for row, base in pairs.items()), runs,
                        (*_bars(_metrics([grid])), ACCURACIES[0]))  # fmt: skip


def _column_runs(grid: Grid, column: str, rows: list[str], cells: Sequence[Cell]) -> Runs:
    by = telling_settings(cells, ("model",))
    tags = ((wandb_tag(grid.name),), _tags([grid.profile]), _tags([column]), _tags(rows))
    return Runs(column or grid.name, tuple(filter(None, tags)), by, _curves(cells, by))


def _tags(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(wandb_tag(name) for name in names if name))


def differences(results: Results) -> str:
    """Those of the paired rows, as Markdown: wandb can't subtract one run from another. Nothing without pairs."""
    if not bases(results.grid):
        return ""
    found = {metric: pair_rows(results, metric) for metric in results.grid.metrics}
    parts = [f"{heading(results.grid)}, {metric}:\n\n{table(rows)}" for metric, rows in found.items() if rows]
    return "\n\n".join([PAIRS, *parts]) if parts else NO_PAIR


def _measures_gradients(cells: Iterable[Cell]) -> bool:
    return any(cell.args.dgc_diagnostics for cell in cells)


# -- which settings tell rows apart ------------------------------------------------------------------------------------


def telling_settings(cells: Sequence[Cell], first: Sequence[str]) -> tuple[str, ...]:
    """A few settings, as few as a greedy search finds, in which any two rows differ that are not the same runs.

    Those of `first` that differ at all are taken, since they are what a reader looks for.
    """
    configs = _distinct_configs(cells)
    names = sorted({name for config in configs for name in config})
    varying = [name for name in names if len({repr(config.get(name)) for config in configs}) > 1]
    chosen = [name for name in first if name in varying]

    def found(keys: list[str]) -> int:
        return len({tuple(repr(config.get(key)) for key in keys) for config in configs})

    while found(chosen) < len(configs):
        chosen.append(max(varying, key=lambda name: found([*chosen, name])))  # the first by name of equals
    return tuple(chosen) or (first[-1],)


def _curves(cells: Sequence[Cell], by: Sequence[str]) -> int:
    """How many different values some settings have together."""
    return len({tuple(repr(config.get(key)) for key in by) for config in _distinct_configs(cells)})


def _distinct_configs(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """What the runs log as their settings, each once."""
    unseeded = {cell.argv[:-1]: cell for cell in cells}  # whose last flag is the seed
    configs = [logged_settings(cell) for cell in unseeded.values()]
    return list({repr(sorted(config.items())): config for config in configs}.values())


def logged_settings(cell: Cell) -> dict[str, Any]:
    """By the names that wandb groups by: of a run's settings those that are single values; no seed."""
    flat: dict[str, Any] = {}
    for name, value in relevant_config(cell.args).items():
        nested = {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
        flat |= {key: item for key, item in nested.items() if item is None or isinstance(item, str | int | float)}
    flat.pop("seed", None)
    return flat
