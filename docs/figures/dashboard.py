"""What a wandb dashboard contains, drawn from its layout: a sketch, with made-up curves.

python -m docs.figures.dashboard
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cells import expand
from experiments.dashboard.layout import BARS, IMAGES, LINES, Dashboard, Panel, Runs, Section, dashboard
from experiments.report.styles import BLUE, GREY, INK, VERMILION, pyplot
from experiments.results.collection import Results
from experiments.results.records import LESS_IS_BETTER
from experiments.tables import load_table

PICTURE = Path(__file__).with_suffix(".svg")
TABLE, PROFILE = "gradients", "paper"
PER_LINE, WIDTH, BOX, GAP = 3, 12.5, 1.15, 0.12  # inches
SIDE = 3.0  # the list of runs
HEAD = 0.34  # of a section


def example() -> Dashboard:
    """The dashboard of the table that has every kind of panel."""
    return dashboard([Results(expand(load_table(TABLE, PROFILE), []), {})])


def lines_of(section: Section) -> int:
    return -(-len(section.panels) // PER_LINE)


def draw(shown: Dashboard, picture: Path) -> None:
    plt = pyplot()
    plt.rcParams["svg.fonttype"] = "none"  # text stays text
    height = sum(HEAD + lines_of(section) * (BOX + GAP) for section in shown.sections) + 0.5
    figure = plt.figure(figsize=(WIDTH, height))

    def place(x: float, y: float, width: float, high: float) -> Any:
        """Axes by their upper left corner, in inches from that of the figure."""
        return figure.add_axes((x / WIDTH, 1 - (y + high) / height, width / WIDTH, high / height))

    _draw_side(place(0.1, 0.35, SIDE - 0.2, height - 0.5), shown.runs, [b.title for b in shown.blocks if b.level < 3])
    figure.text(
        0.1 / WIDTH,
        1 - 0.24 / height,
        f"Workspace “{shown.title}”: a sketch with made-up values (grey: SGD, orange: ER, blue: DGC-ER)",
        fontsize=10,
        weight="bold",
        color=INK[0],
    )
    width, y = (WIDTH - SIDE) / PER_LINE - GAP, 0.35
    for section in shown.sections:
        figure.text(SIDE / WIDTH, 1 - (y + 0.22) / height, section.name, fontsize=9, weight="bold", color=INK[0])
        y += HEAD
        for number, panel in enumerate(section.panels):
            line, column = divmod(number, PER_LINE)
            _draw_panel(place(SIDE + column * (width + GAP), y + line * (BOX + GAP), width, BOX), panel)
        y += lines_of(section) * (BOX + GAP)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, metadata={"Date": None})


def _draw_side(axes: Any, runs: Runs, chapters: list[str]) -> None:
    """Which runs are shown, how they are grouped, and what the report has beside the workspace."""
    tags = [f"tag {' or '.join(f'“{tag}”' for tag in group)}" for group in runs.tags]
    parts = {
        "Runs that have": tags,
        "Seeds are one curve; curves by": list(runs.by),
        "The report has chapters": chapters,
    }
    _empty(axes)
    line = 0.185 / (axes.get_position().height * axes.figure.get_figheight())  # of text, as a part of the height
    at = 1 - 0.6 * line
    for head, lines in parts.items():
        axes.text(0.05, at, head, fontsize=8.5, weight="bold", color=INK[0], va="top")
        for text in [part for whole in lines for part in textwrap.wrap(whole, 36)]:
            at -= line
            axes.text(0.05, at, text, fontsize=7.5, color=INK[0], va="top")
        at -= 2 * line


def _empty(axes: Any) -> None:
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set(visible=True, color=GREY[0], linewidth=0.6)


def _draw_panel(axes: Any, panel: Panel) -> None:
    """Title, what is plotted, and a sketch of it."""
    _empty(axes)
    axes.text(0.03, 0.95, panel.title, fontsize=7.5, color=INK[0], va="top")
    plotted = " ".join([*panel.keys, f"against {panel.x}"] if panel.kind == LINES else panel.keys)
    axes.text(0.03, 0.05, plotted, fontsize=6.8, color=GREY[0], family="monospace")
    t = np.linspace(0, 1, 15)
    if panel.kind == LINES:
        for colour, level in ((VERMILION[0], 0.45), (BLUE[0], 0.62)):
            curve = level - 0.1 + 0.2 * np.exp(-4 * t)
            axes.plot(0.06 + 0.88 * t, curve, color=colour, linewidth=1.4)
            axes.fill_between(0.06 + 0.88 * t, curve - 0.03, curve + 0.03, color=colour, alpha=0.2, linewidth=0)
    elif panel.kind == BARS:
        lengths = (0.72, 0.6, 0.35) if panel.keys[0] in LESS_IS_BETTER else (0.35, 0.6, 0.72)
        for at, (colour, length) in enumerate(zip((GREY[0], VERMILION[0], BLUE[0]), lengths, strict=True)):
            axes.barh(0.3 + 0.17 * at, length, 0.11, 0.06, color=colour, xerr=0.03, error_kw={"linewidth": 0.8})
    elif panel.kind == IMAGES:
        for at in range(4):
            matrix = np.tril(np.linspace(0.35, 1, 25).reshape(5, 5).T + 0.03 * at)
            left = 0.08 + 0.22 * at
            axes.imshow(np.where(matrix, matrix, np.nan), extent=(left, left + 0.17, 0.26, 0.76), aspect="auto")
        axes.set(xlim=(0, 1), ylim=(0, 1))
    else:
        axes.text(0.06, 0.6, "DGC-ER − (ER, filled at task ends)\nmean [95 % interval], p (seeds)", fontsize=7,
                  color=INK[0], va="top")  # fmt: skip


if __name__ == "__main__":
    draw(example(), PICTURE)
