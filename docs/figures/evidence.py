"""Write tables of results that are kept in docs/results/ into the pages that show them, between marks.

python docs/figures/evidence.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.report.aggregate import records_of
from experiments.report.markdown import number_parts
from experiments.results.collect import UNDEFINED, Results
from experiments.results.records import Record
from experiments.results.statistics import Difference, Summary
from experiments.results.stored import read_stored

DOCS = Path(__file__).resolve().parents[1]
RESULTS = DOCS / "results"
START, END = "<!-- tables: see docs/results/{} -->", "<!-- end of tables -->"
METRICS = ("FAIA", "FAA", "FF")
ALL_METHODS = "S-CIFAR100, 500"  # the column in which all methods are compared


def mean(summary: Summary) -> str:
    return UNDEFINED if summary.mean is None else " ".join(number_parts(summary)[:2])


def interval(difference: Difference | None) -> str:
    if difference is None or difference.summary.mean is None:
        return ""
    if difference.low is None:  # of a single seed
        return f"{difference.summary.mean:+.2f}"
    return f"{difference.summary.mean:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}]"


def images(column: str) -> str:
    return column.rpartition(", ")[2]  # the name of a column may begin with its dataset


def overview(results: Results) -> str:
    """Of each buffer all metrics, and the differences in FAIA and FAA."""
    lines = []
    for column in results.grid.columns:
        lines += [
            f"Buffer of {images(column)}:",
            "",
            "| | FAIA | FAA | FF | ΔFAIA | ΔFAA |",
            "|---|---|---|---|---|---|",
        ]
        for row in results.grid.rows:
            cells = [results.gap(row, column, m) or mean(results.summary(row, column, m)) for m in METRICS]
            cells += [interval(results.difference(row, column, metric)) for metric in METRICS[:2]]
            lines.append(f"| {row} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def details(results: Results) -> str:
    """Of each buffer and metric n, mean, sd, se, the difference and its p-value."""
    lines = []
    for column in results.grid.columns:
        for metric in METRICS:
            lines += [f"## Buffer of {images(column)}, {metric}", ""]
            lines += ["| | n | mean | sd | se | difference | p |", "|---|---|---|---|---|---|---|"]
            for row in results.grid.rows:
                summary, difference = results.summary(row, column, metric), results.difference(row, column, metric)
                if summary.mean is None:
                    continue
                p = "" if difference is None or difference.p is None else f"{difference.p:.2g}"
                numbers = (UNDEFINED if x is None else f"{x:.2f}" for x in (summary.mean, summary.sd, summary.se))
                lines.append(f"| {row} | {summary.n} | {' | '.join(numbers)} | {interval(difference)} | {p} |")
            lines.append("")
    return "\n".join(lines).rstrip()


def methods(results: Results) -> str:
    """All methods with 500 images: metrics, time of a step, bytes beyond the network of `sgd`, the paper's FAIA."""
    ratios = json.loads((RESULTS / "benchmarks" / "methods.json").read_text(encoding="utf-8"))["methods"]
    lines = ["| | FAIA | FAA | FF | time | bytes | FAIA in the paper |", "|---|---|---|---|---|---|---|"]
    for row in results.grid.rows:
        records = records_of(results, row, ALL_METHODS)
        model = records[0]["model"]
        cells = [mean(results.summary(row, ALL_METHODS, metric)) for metric in METRICS]
        cells.append(f"{ratios[model]['step']:.2f}" if model in ratios else "")
        cells.append(stored(records, results.records["SGD", ALL_METHODS, 0]["parameters"]))
        paper = results.grid.paper.get("FAIA", {}).get(row, {}).get(ALL_METHODS)
        lines.append(f"| {row} | {' | '.join(cells)} | {paper.text if paper else ''} |")
    return "\n".join(lines)


def stored(records: list[Record], plain: int) -> str:
    """What a method keeps beside its network, and what it has let that grow by; nothing if its runs do not tell."""
    known = [record for record in records if "stored_bytes" in record]
    return f"{known[0]['stored_bytes'] + 4 * max(0, known[0]['parameters'] - plain):,}" if known else ""


TABLES: list[tuple[str, str, Callable[[Results], str]]] = [  # of which results, in which page
    ("dgc_evidence", "dgc.md", overview),
    ("dgc_evidence", "results/dgc_evidence/README.md", details),
    ("main_table", "methods.md", methods),
    ("main_table", "results/main_table/README.md", details),
    ("one_epoch", "methods.md", overview),
    ("one_epoch", "results/one_epoch/README.md", details),
]


def pages() -> dict[Path, str]:
    """The pages with their tables as the results have them now."""
    filled: dict[Path, str] = {}
    for folder, name, table in TABLES:
        results, page = read_stored(RESULTS / folder / "results.json")[0], DOCS / name
        start = START.format(folder)
        before, _, rest = filled.get(page, page.read_text(encoding="utf-8")).partition(start)
        filled[page] = f"{before}{start}\n\n{table(results)}\n\n{END}{rest.partition(END)[2]}"
    return filled


def main() -> None:
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
