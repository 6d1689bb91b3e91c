"""Write the tables of docs/results/dgc_evidence/results.json into docs/dgc.md and the README beside it, between marks.

python docs/figures/evidence.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.markdown import number_parts
from experiments.results import UNDEFINED, Results
from experiments.statistics import Difference, Summary
from experiments.stored import read_stored

DOCS = Path(__file__).resolve().parents[1]
FOLDER = DOCS / "results" / "dgc_evidence"
START, END = "<!-- tables: see docs/results/dgc_evidence -->", "<!-- end of tables -->"
METRICS = ("FAIA", "FAA", "FF")


def mean(summary: Summary) -> str:
    return UNDEFINED if summary.mean is None else " ".join(number_parts(summary)[:2])


def interval(difference: Difference | None) -> str:
    if difference is None or difference.summary.mean is None:
        return ""
    return f"{difference.summary.mean:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}]"


def overview(results: Results) -> str:
    """Of each buffer all metrics, and the differences in FAIA and FAA."""
    lines = []
    for column in results.grid.columns:
        lines += [f"Buffer of {column}:", "", "| | FAIA | FAA | FF | ΔFAIA | ΔFAA |", "|---|---|---|---|---|---|"]
        for row in results.grid.rows:
            cells = [mean(results.summary(row, column, metric)) for metric in METRICS]
            cells += [interval(results.difference(row, column, metric)) for metric in METRICS[:2]]
            lines.append(f"| {row} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def details(results: Results) -> str:
    """Of each buffer and metric n, mean, sd, se, the difference and its p-value."""
    lines = []
    for column in results.grid.columns:
        for metric in METRICS:
            lines += [f"## Buffer of {column}, {metric}", ""]
            lines += ["| | n | mean | sd | se | difference | p |", "|---|---|---|---|---|---|---|"]
            for row in results.grid.rows:
                summary, difference = results.summary(row, column, metric), results.difference(row, column, metric)
                if summary.mean is None:
                    continue
                p = "" if difference is None or difference.p is None else f"{difference.p:.2g}"
                numbers = f"{summary.n} | {summary.mean:.2f} | {summary.sd:.2f} | {summary.se:.2f}"
                lines.append(f"| {row} | {numbers} | {interval(difference)} | {p} |")
            lines.append("")
    return "\n".join(lines).rstrip()


def pages() -> dict[Path, str]:
    """The pages with their tables as the results have them now."""
    (results,) = read_stored(FOLDER / "results.json")
    filled = {}
    for page, tables in ((DOCS / "dgc.md", overview(results)), (FOLDER / "README.md", details(results))):
        before, _, rest = page.read_text(encoding="utf-8").partition(START)
        filled[page] = f"{before}{START}\n\n{tables}\n\n{END}{rest.partition(END)[2]}"
    return filled


def main() -> None:
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
