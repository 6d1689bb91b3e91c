"""The files of a report, all below one directory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from experiments.report.environment import environment
from experiments.report.figures import CAPTIONS, FOLDER, DrawnPanel, draw_panels, write_figures
from experiments.report.latex import latex
from experiments.report.page import page
from experiments.report.styles import styles
from experiments.report.tables import at_paper_scale, markdown, slug, table, text
from experiments.report.verdict import NOTHING
from experiments.results.collection import Results, write_results
from utils.resume.files import atomic_write_text

ORIENTATION = "This is not the paper's scale: its numbers stand beside ours for orientation only."


def write_report(results: Sequence[Results], directory: Path) -> None:
    """`index.html`, `report.md`, `latex/`, `figures/`, and `results.json` with all that they are made of."""
    panels = draw_panels(results, styles(results))
    texts = {"index.html": page(results, panels), "report.md": report_markdown(results, panels)}
    texts |= {f"latex/{slug(result.grid.name)}.tex": latex(result) for result in results}
    for name, content in texts.items():
        atomic_write_text(directory / name, content, flag="--output")
    write_figures(panels, directory)
    write_results(results, directory)


def report_markdown(results: Sequence[Results], panels: Sequence[DrawnPanel] = ()) -> str:
    parts = [] if any(result.records for result in results) else [NOTHING]
    parts += [ORIENTATION] if any(r.grid.paper and not at_paper_scale(r.grid) for r in results) else []
    parts += map(markdown, results)
    shown = [panel for panel in panels if panel.png is not None]
    for (benchmark, kind), members in groupby(shown, key=lambda panel: (panel.benchmark, panel.kind)):
        images = [f"![{_alternative(panel.title)}]({FOLDER}/{panel.name}.png)" for panel in members]
        parts += [f"## {text(benchmark)}", text(CAPTIONS[kind]), "\n".join(images)]
    rows = [[name, value] for name, value in environment(results).items()]
    return "\n\n".join([*parts, "## Conditions", table([["", ""], *rows])]) + "\n"


def _alternative(title: str) -> str:
    """The text in place of a picture, which ends at its last bracket whatever names are in it."""
    return re.sub(r"([\\\[\]])", r"\\\1", text(title))
