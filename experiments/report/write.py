"""The files of a report, all below one directory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from experiments.report.environment import environment
from experiments.report.figures import FOLDER, write_figures
from experiments.report.latex import latex
from experiments.report.page import page
from experiments.report.styles import styles
from experiments.report.tables import at_paper_scale, markdown, slug, table, text
from experiments.results.collection import Results, write_results
from utils.resume.files import atomic_write_text

ORIENTATION = "The scale is not the paper's: its numbers stand beside ours for orientation only."


def write_report(results: Sequence[Results], directory: Path) -> None:
    """`index.html`, `report.md`, `latex/`, `figures/`, and `results.json` with all that they are made of."""
    figures = write_figures(results, styles(results), directory)
    texts = {"index.html": page(results), "report.md": report_markdown(results, figures)}
    texts |= {f"latex/{slug(result.grid.name)}.tex": latex(result) for result in results}
    for name, content in texts.items():
        atomic_write_text(directory / name, content, flag="--output")
    write_results(results, directory)


def report_markdown(results: Sequence[Results], figures: Sequence[dict[str, str]]) -> str:
    """`figures`: for each table the names of its files by caption."""
    parts = [ORIENTATION] if any(r.grid.paper and not at_paper_scale(r.grid) for r in results) else []
    for result, drawn in zip(results, figures, strict=True):
        parts += [markdown(result), *(f"![{_alternative(c)}]({FOLDER}/{name}.png)" for c, name in drawn.items())]
    rows = [[name, value] for name, value in environment(results).items()]
    return "\n\n".join([*parts, "## Conditions", table([["", ""], *rows])]) + "\n"


def _alternative(caption: str) -> str:
    """The text in place of a picture, which ends at its last bracket whatever names are in it."""
    return re.sub(r"([\\\[\]])", r"\\\1", text(caption))
