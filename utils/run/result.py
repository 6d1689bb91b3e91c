"""A finished run as an object, for scripts and notebooks; needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from utils.errors import UserError
from utils.metrics import DEFINITIONS, average_accuracy
from utils.run.final_report import Metrics, reported_metrics
from utils.run.heatmap import COLOURS, colour, ink
from utils.run.identity import stored_config
from utils.run.look import LOOK, PALETTE
from utils.run.read_results import Matrix, read_finished

MOST_SHOWN = 20  # tasks whose matrix a notebook shows in numbers


class Result:
    """What came out of a run: numpy arrays and plain values, read from its directory.

    `accuracy[k, j]` is the Class-IL accuracy in percent on task j after training task k, NaN where it was not measured;
    `metrics` are FAA, FAIA, FF, BWT and FWT of it, None where undefined. Those of Task-IL end in `_task_il`. `config`
    holds all flags, `summary` what else is known at the end: steps, parameters, bytes.
    """

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        found = read_finished(self.directory)
        if found is None and not (self.directory / "config.yaml").is_file():
            raise UserError(f"{self.directory}: no run is there (config.yaml is missing); give a run's directory")
        if found is None:
            raise UserError(f"{self.directory} has no summary.json: the run is not finished; repeat its call")
        self.accuracy: Matrix = found.class_il
        self.accuracy_task_il: Matrix = found.task_il
        self.metrics: Metrics
        self.metrics_task_il: Metrics
        self.metrics, self.metrics_task_il = reported_metrics(self.directory, found.summary)
        self.config: dict[str, Any] = stored_config(self.directory, "args")
        self.summary: dict[str, Any] = found.summary

    @property
    def title(self) -> str:
        return f"{self.summary['model']} on {self.summary['dataset']}, seed {self.summary['seed']}"

    def __repr__(self) -> str:
        shown = self._shown_metrics()
        lines = [f"{'':8}{''.join(f'{name:>8}' for name in shown)}"]
        for kind, metrics in self._by_kind():
            lines.append(f"{kind:8}{''.join(f'{metrics[name]:8.2f}' for name in shown)}")
        return "\n".join([self.title, *lines, str(self.directory)])

    def _shown_metrics(self) -> list[str]:
        """Those that are defined: with one task there is no forgetting, and FWT is measured only on demand."""
        return [name for name in DEFINITIONS if self.metrics.get(name) is not None]

    def _by_kind(self) -> tuple[tuple[str, Metrics], ...]:
        return ("Class-IL", self.metrics), ("Task-IL", self.metrics_task_il)

    # -- pictures ------------------------------------------------------------------------------------------------------

    def plot(self, axes: Any = None, label: str | None = None) -> Any:
        """The accuracy on all tasks seen, after each task; into `axes` that may show other runs. Returns the axes."""
        means = average_accuracy(self.accuracy)
        with _axes(axes) as axes:
            colour = PALETTE[len(axes.get_lines()) % len(PALETTE)][0]
            look = {"color": colour, "linewidth": 1.6, "marker": "o", "markersize": 3}
            axes.plot(np.arange(1, len(means) + 1), means, label=label or self.summary["model"], **look)
            axes.set(xlabel="tasks seen", ylabel="accuracy on all of them (%)")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.set_ylim(bottom=0)
            axes.legend()
        return axes

    def plot_matrix(self, axes: Any = None) -> Any:
        """The accuracy on each task (column) after each task (row), on one scale for all runs. Returns the axes."""
        end = len(self.accuracy) + 0.5
        with _axes(axes) as axes:
            from matplotlib.colors import LinearSegmentedColormap

            colours = LinearSegmentedColormap.from_list("accuracy", COLOURS / 255)
            image = axes.imshow(self.accuracy, cmap=colours, vmin=0, vmax=100, extent=(0.5, end, end, 0.5))
            axes.set(xlabel="on task", ylabel="after task", title=self.title)
            axes.grid(visible=False)
            axes.figure.colorbar(image, ax=axes, label="accuracy (%)").outline.set_visible(False)
        return axes

    # -- notebooks -----------------------------------------------------------------------------------------------------

    def _repr_html_(self) -> str:
        matrix = f"<table>{''.join(self._matrix_rows())}</table>" if len(self.accuracy) <= MOST_SHOWN else ""
        rows = "".join(self._metric_rows())
        where = f"<code>{escape(str(self.directory))}</code>"
        return f"<b>{escape(self.title)}</b><table>{rows}</table>{matrix}{where}"

    def _metric_rows(self) -> Iterator[str]:
        """A metric's definition is shown where the pointer rests on its name."""
        shown = self._shown_metrics()
        names = (f'<th title="{escape(DEFINITIONS[name])}">{name}</th>' for name in shown)
        yield f"<tr><th></th>{''.join(names)}</tr>"
        for kind, metrics in self._by_kind():
            yield f"<tr><th>{kind}</th>{''.join(f'<td>{metrics[name]:.2f}</td>' for name in shown)}</tr>"

    def _matrix_rows(self) -> Iterator[str]:
        tasks = range(len(self.accuracy))
        yield f"<tr><th>after task</th>{''.join(f'<th>on {j + 1}</th>' for j in tasks)}</tr>"
        for k in tasks:
            if not np.isnan(self.accuracy[k]).all():
                yield f"<tr><th>{k + 1}</th>{''.join(_cell(self.accuracy[k, j]) for j in tasks)}</tr>"


def _cell(value: float) -> str:
    if np.isnan(value):
        return "<td></td>"
    return f'<td style="background:rgb{colour(value)};color:{ink(value)}">{value:.1f}</td>'


@contextmanager
def _axes(given: Any) -> Iterator[Any]:
    """To draw in the project's look, on new axes if none are given; the caller's other figures keep theirs."""
    from matplotlib import pyplot  # slow to load

    # Not `rc_context`, which would also undo what a notebook sets up when the first figure is made.
    before = {name: pyplot.rcParams[name] for name in LOOK}
    pyplot.rcParams.update(LOOK)
    try:
        yield pyplot.subplots(figsize=(5, 3), layout="constrained")[1] if given is None else given
    finally:
        pyplot.rcParams.update(before)
