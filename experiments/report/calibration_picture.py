"""The picture that shows calibration at work: accuracy over the tasks, the gap that is closed, and the matrices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.report.styles import BLUE, GREY, INK, VERMILION, accuracy_colours, pyplot
from utils.metrics import average_accuracy

Matrices = list[NDArray[np.float64]]  # one accuracy matrix a[k, j] for each seed

JOINT = "joint"
COLOURS = {"sgd": GREY[0], "er": VERMILION[0], "dgc_er": BLUE[0], JOINT: INK[0]}
LABELS = {"sgd": "fine-tuning", "er": "replay", "dgc_er": "calibrated replay", JOINT: "joint training"}
TITLES = {name: f"{label} ({name})" for name, label in LABELS.items()}


def percent_closed(replay: float, calibrated: float, joint: float) -> float:
    """The part of the gap between replay and joint training that calibration closes."""
    return 100 * (calibrated - replay) / (joint - replay)


def draw(matrices: dict[str, Matrices], bound: Sequence[Sequence[float]], picture: Path, conditions: str) -> None:
    """`bound`: for each seed the accuracy of joint training on the first task, the first two, and so on."""
    plt = pyplot()
    figure = plt.figure(figsize=(9.6, 3.7), constrained_layout=True)
    left, right = np.asarray(figure.subfigures(1, 2, width_ratios=[1.5, 1]))
    curves = {name: np.array([average_accuracy(a) for a in seeds]) for name, seeds in matrices.items() if name != JOINT}
    curves[JOINT] = np.array(bound)
    _draw_curves(left.subplots(), curves, conditions)
    _draw_matrices(right, {name: np.mean(seeds, axis=0) for name, seeds in matrices.items() if name != JOINT})
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=170)


def _draw_curves(axes: Any, curves: dict[str, NDArray[np.float64]], conditions: str) -> None:
    tasks = np.arange(1, curves["er"].shape[1] + 1)
    ends = {}
    for name, seeds in curves.items():
        mean, spread = seeds.mean(0), seeds.std(0, ddof=1) if len(seeds) > 1 else 0
        dash = "--" if name == JOINT else "-"
        axes.plot(tasks, mean, dash, color=COLOURS[name], linewidth=2.2, marker="o", markersize=3.5)
        axes.fill_between(tasks, mean - spread, mean + spread, color=COLOURS[name], alpha=0.15, linewidth=0)
        ends[name] = mean[-1]
        axes.annotate(
            f"{LABELS[name]}  {mean[-1]:.1f} %", (tasks[-1], mean[-1]), (7, 0), textcoords="offset points",
            color=COLOURS[name], va="center", fontsize=9,
        )  # fmt: skip
    _mark_gap(axes, tasks[-1] + 6.5, ends)
    axes.set(xlabel="tasks seen", ylabel="accuracy on all of them (%)", xticks=tasks, ylim=(0, None))
    axes.set_xlim(tasks[0] - 0.2, tasks[-1] + 9.6)
    axes.set_title(conditions, fontsize=9, loc="left")


def _mark_gap(axes: Any, x: float, ends: dict[str, float]) -> None:
    """From replay to joint training, the closed part of it bold."""
    axes.plot([x, x], [ends["er"], ends[JOINT]], color=GREY[0], linewidth=1.2, clip_on=False)
    style = {"arrowstyle": "-|>", "color": COLOURS["dgc_er"], "linewidth": 3, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (x, ends["dgc_er"]), (x, ends["er"]), arrowprops=style, annotation_clip=False)
    percent = percent_closed(ends["er"], ends["dgc_er"], ends[JOINT])
    middle = (ends["er"] + ends["dgc_er"]) / 2
    axes.annotate(
        f"{percent:.0f} % of the\ngap closed", (x, middle), (9, 0), textcoords="offset points", va="center", fontsize=9,
        fontweight="bold", color=COLOURS["dgc_er"],
    )  # fmt: skip


def _draw_matrices(figure: Any, matrices: dict[str, NDArray[np.float64]]) -> None:
    panels = figure.subplots(1, len(matrices), sharey=True)
    high = max(float(np.nanmax(a)) for a in matrices.values())
    for axes, (name, matrix) in zip(panels, matrices.items(), strict=True):
        last = len(matrix) + 0.5
        image = axes.imshow(matrix, cmap=accuracy_colours(), vmin=0, vmax=high, extent=(0.5, last, last, 0.5))
        axes.set_title(LABELS[name], fontsize=9, color=COLOURS[name])
        axes.set_xlabel("on task", fontsize=9)
        shown = sorted({1, (len(matrix) + 1) // 2, len(matrix)})
        axes.set(xticks=shown, yticks=shown)
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
        axes.tick_params(labelsize=8)
    panels[0].set_ylabel("after task", fontsize=9)
    bar = figure.colorbar(image, ax=panels, orientation="horizontal", shrink=0.8, aspect=25, pad=0.03)
    bar.set_label("accuracy (%)", fontsize=9)
    bar.outline.set_visible(False)
