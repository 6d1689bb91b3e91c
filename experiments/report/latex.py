"""Tables for LaTeX with booktabs, one file each to be \\input."""

from __future__ import annotations

import re
from collections.abc import Sequence

from experiments.report.tables import (
    PAIRS,
    Column,
    columns,
    difference_text,
    groups,
    heading,
    number_parts,
    pairs,
    slug,
)
from experiments.results.collection import ABSENT, MISSING, NOT_AVAILABLE, UNDEFINED, Results

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
GAPS = {MISSING: r"\textit{missing}", NOT_AVAILABLE: r"\textit{not available}", UNDEFINED: "--", ABSENT: ""}
SHRINK = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"


def latex(results: Results) -> str:
    """One `table` per metric with the paper's numbers beside ours, and one of the differences of paired rows."""
    found = []
    for metric in results.grid.metrics:
        found.append(_float(results, metric, _numbers(results, metric), "", "Mean ± standard error (number of seeds)."))
        if pairs(results, metric):
            found.append(_float(results, metric, _differences(results, metric), "-pairs", PAIRS))
    notes = [f"% {' '.join(note.split())}" for note in results.grid.notes]
    return "\n".join(["% Needs \\usepackage{booktabs,graphicx}.", *notes, *found]) + "\n"


def escape(text: str) -> str:
    """Any text as LaTeX; what is neither ASCII nor named here is left to an engine that knows Unicode."""
    return KNOWN.sub(lambda found: SPECIAL[found[0]], " ".join(text.split()))


def _float(results: Results, metric: str, body: list[str], suffix: str, explained: str) -> str:
    grid = results.grid
    caption = " ".join(filter(None, [f"{heading(grid)}: {metric}.", grid.conditions, explained]))
    label = f"tab:{slug(grid.name)}-{slug(metric)}{suffix}"
    return "\n".join(
        [
            r"\begin{table}[htbp]",
            r"\centering",
            f"\\caption{{{escape(caption)}}}",
            f"\\label{{{label}}}",
            SHRINK,
            *body,
            "}",
            r"\end{table}",
        ]
    )


def _numbers(results: Results, metric: str) -> list[str]:
    found, paper = columns(results.grid, metric), results.grid.paper.get(metric, {})
    beside = [any(column.name in row for row in paper.values()) for column in found]
    lines = []
    for row in results.grid.rows:
        cells = [escape(row)]
        for column, has_paper in zip(found, beside, strict=True):
            cells.append(_cell(results, row, column, metric))
            if has_paper:
                value = paper.get(row, {}).get(column.name)
                cells.append("" if value is None else escape(value.text))
        lines.append(cells)
    return _tabular(found, [1 + has_paper for has_paper in beside], lines)


def _cell(results: Results, row: str, column: Column, metric: str) -> str:
    gap = results.gap(row, column.name, metric)
    return escape(" ".join(number_parts(results.summary(row, column.name, metric)))) if gap is None else GAPS[gap]


def _differences(results: Results, metric: str) -> list[str]:
    lines = [[escape(name), *(escape(difference_text(d)) for d in by)] for name, by in pairs(results, metric).items()]
    found = columns(results.grid, metric)
    return _tabular(found, [1] * len(found), lines)


def _tabular(found: list[Column], widths: list[int], lines: list[list[str]]) -> list[str]:
    """`widths`: how many columns of the tabular each column takes, ours alone or ours and the paper's."""
    head = []
    if named := groups(found):
        head += _grouped(named, widths)
    head.append(_row(["", *(_spanning(width, escape(c.label)) for c, width in zip(found, widths, strict=True))]))
    if max(widths) > 1:
        head.append(_row(["", *(word for width in widths for word in ("ours", "paper")[:width])]))
    return [
        f"\\begin{{tabular}}{{l{'r' * sum(widths)}}}",
        r"\toprule",
        *head,
        r"\midrule",
        *map(_row, lines),
        r"\bottomrule",
        r"\end{tabular}%",
    ]


def _grouped(named: list[tuple[str, int]], widths: list[int]) -> list[str]:
    """The line of the datasets, with a rule below each."""
    cells, rules, first, at = [""], [], 0, 2
    for group, members in named:
        span = sum(widths[first : first + members])
        cells.append(f"\\multicolumn{{{span}}}{{c}}{{{escape(group)}}}")
        rules.append(f"\\cmidrule(lr){{{at}-{at + span - 1}}}")
        first, at = first + members, at + span
    return [_row(cells), "".join(rules)]


def _spanning(width: int, text: str) -> str:
    return text if width == 1 else f"\\multicolumn{{{width}}}{{c}}{{{text}}}"


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
