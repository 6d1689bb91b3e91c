"""Tables for LaTeX with booktabs, one file each to be \\input."""

from __future__ import annotations

import re

from experiments.grid import Grid
from experiments.report.tables import PAIRS, heading, number_rows, pair_rows, slug
from experiments.results.collection import Results

GREEK = "alpha beta gamma delta lambda mu rho sigma tau"
SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{character: f"{{{character}}}" for character in "[]*"},  # which mean something behind the end of a line
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "–": "--",
    "’": "'",
    "…": r"\dots{}",
    "−": "$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "θ̃": r"$\tilde\theta$",
    "Γ": r"$\Gamma$",
    **{character: f"$\\{name}$" for character, name in zip("αβγδλμρστ", GREEK.split(), strict=True)},
}
KNOWN = re.compile("|".join(map(re.escape, sorted(SPECIAL, key=len, reverse=True))))
SHRINK = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"


def latex(results: Results) -> str:
    """One `table` per metric with the paper's numbers beside ours, and one of the differences of paired rows."""
    found = []
    for metric in results.grid.metrics:
        numbers, differences = number_rows(results, metric), pair_rows(results, metric)
        found.append(_float(results.grid, metric, numbers, "", "Mean ± standard error (number of seeds)."))
        if differences:
            found.append(_float(results.grid, metric, differences, "-pairs", PAIRS))
    notes = [f"% {' '.join(note.split())}" for note in results.grid.notes]
    return "\n".join(["% Needs \\usepackage{booktabs,graphicx}.", *notes, *found]) + "\n"


def escape(text: str) -> str:
    """Any text as LaTeX; what is neither ASCII nor named here is left to an engine that knows Unicode."""
    return KNOWN.sub(lambda found: SPECIAL[found[0]], " ".join(text.split()))


def _float(grid: Grid, metric: str, rows: list[list[str]], suffix: str, explained: str) -> str:
    caption = " ".join(filter(None, [f"{heading(grid)}: {metric}.", grid.conditions, explained]))
    head, *lines = [" & ".join(map(escape, row)) + r" \\" for row in rows]
    body = "\n".join([r"\toprule", head, r"\midrule", *lines, r"\bottomrule"])
    return rf"""\begin{{table}}[htbp]
\centering
\caption{{{escape(caption)}}}
\label{{tab:{slug(grid.name)}-{slug(metric)}{suffix}}}
{SHRINK}
\begin{{tabular}}{{l{"r" * (len(rows[0]) - 1)}}}
{body}
\end{{tabular}}%
}}
\end{{table}}"""
