"""The tables of the page: ours with the paper's numbers below them, and the differences of pairs."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from experiments.grid import PaperValue
from experiments.report.tables import (
    LEGEND,
    PAIRS,
    Column,
    agreement,
    at_paper_scale,
    columns,
    difference_text,
    groups,
    missing,
    number_parts,
    pairs,
)
from experiments.results.collection import ABSENT, MISSING, NOT_AVAILABLE, UNDEFINED, Results
from experiments.results.statistics import Difference, Summary

# From what may still come to what never will.
GAP_CLASSES = {MISSING: "missing", NOT_AVAILABLE: "missing", UNDEFINED: "undefined", ABSENT: "absent"}
GAP_WORDS = {ABSENT: "not in the grid"}
BAR = 120  # units that the interval of a difference is drawn in
escape = html.escape


def section(results: Results, table: dict[str, Any], data: dict[str, Any]) -> str:
    """A table with all its metrics, pairs, figures and notes. `table` is its part of the page's data."""
    grid, anchor = results.grid, table["id"]
    parts = [f'<section id="{anchor}" class="result" data-table="{data["tables"].index(table)}">']
    parts.append(f"<h2>{escape(table['heading'])}</h2>")
    parts.append('<p class="nothing" hidden>The filters leave nothing of this table.</p><div class="content">')
    chart = '<figure class="chart"></figure>'
    if grid.place.startswith("Figure"):
        parts.append(chart)
    for metric in grid.metrics:
        parts += [f"<h3>{escape(metric)}</h3>", _numbers(results, metric, table), _differences(results, metric, table)]
    notes = [*grid.notes, *missing([results.expansion])]
    if notes:
        parts.append("<ul class=notes>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>")
    if not grid.place.startswith("Figure"):
        parts.append(chart)
    return "\n".join([*parts, "</div></section>"])


def swatch(number: int) -> str:
    """The colour of a method in the figures; hollow if its line is broken."""
    return f'<i class="key k{number}"></i>'


def scale_notice(results: Sequence[Results]) -> str:
    """What may be concluded from the paper's numbers beside ours; nothing if there are none."""
    beside = [r for r in results if r.grid.paper]
    parts = []
    if any(not at_paper_scale(r.grid) for r in beside):
        parts.append(
            '<p class="notice"><strong>Not the paper’s scale.</strong> The paper’s numbers stand beside ours for '
            "orientation only: networks, epochs or data differ, so the differences mean nothing.</p>"
        )
    if any(at_paper_scale(r.grid) for r in beside):
        entries = "".join(
            f'<li><span class="verdict {verdict}">{sign} ±0.00</span> {escape(words)}</li>'
            for verdict, (sign, words) in LEGEND.items()
        )
        head = "<strong>Difference to the paper, ours − the paper’s</strong>"
        parts.append(f'<div class="notice meaning">{head}<ul class="legend">{entries}</ul></div>')
    return "".join(parts)


def _numbers(results: Results, metric: str, table: dict[str, Any]) -> str:
    found, paper = columns(results.grid, metric), results.grid.paper.get(metric, {})
    rows = []
    for number, row in zip(table["rows"], results.grid.rows, strict=True):
        cells = [
            f'<td data-c="{i}">{_cell(results, row, column, metric, paper.get(row, {}).get(column.name))}</td>'
            for i, column in enumerate(found)
        ]
        name = f"{swatch(number)}{escape(row)}"
        rows.append(f'<tr data-m="{number}"><th scope="row">{name}</th>{"".join(cells)}</tr>')
    words = "mean ± standard error (number of seeds)" + (", below it the paper’s number" if paper else "")
    return _table(f"{metric}: {words}", found, "Method", rows)


def _cell(results: Results, row: str, column: Column, metric: str, paper: PaperValue | None) -> str:
    gap = results.gap(row, column.name, metric)
    summary = results.summary(row, column.name, metric)
    if gap is None:
        mean, error, n = number_parts(summary)
        lacking = len(results.grid.seeds) - summary.n
        note = f' <span class="gap missing">{lacking} missing</span>' if lacking else ""
        ours = f'<span class="ours"><b>{mean}</b> <span class="se">{error} {n}</span></span>{note}'
    else:
        ours = _gap_text(gap)
    return ours + ("" if paper is None else _paper(results, summary, paper))


def _gap_text(gap: str) -> str:
    return f'<span class="gap {GAP_CLASSES[gap]}">{GAP_WORDS.get(gap, gap)}</span>'


def _paper(results: Results, summary: Summary, paper: PaperValue) -> str:
    found = agreement(summary, paper) if at_paper_scale(results.grid) else None
    verdict = ""
    if found is not None:
        sign, words = LEGEND[found.verdict]
        verdict = (
            f' <span class="verdict {found.verdict}" title="{escape(words)}">{sign} {found.difference:+.2f}'
            f'<span class="unseen"> ({found.verdict})</span></span>'
        )
    return f'<span class="paper">paper {escape(paper.text)}{verdict}</span>'


def _differences(results: Results, metric: str, table: dict[str, Any]) -> str:
    by_name = pairs(results, metric)
    if not by_name:
        return ""
    reach = max((_reach(d) for by_column in by_name.values() for d in by_column), default=0.0) or 1.0
    of_row = {f"{row} − ({spec.against})": (row, spec.against) for row, spec in results.grid.rows.items()}
    numbers = dict(zip(results.grid.rows, table["rows"], strict=True))
    rows = []
    for name, by_column in by_name.items():
        row, against = of_row[name]
        gaps = [_gap(results, (row, str(against)), column, metric) for column in results.grid.columns]
        cells = [
            f'<td data-c="{i}">{_difference(d, reach) or gap}</td>'
            for i, (d, gap) in enumerate(zip(by_column, gaps, strict=True))
        ]
        shown = f"{swatch(numbers[row])}{escape(row)} <span class=against>− {escape(str(against))}</span>"
        rows.append(f'<tr data-m="{numbers[row]}"><th scope="row">{shown}</th>{"".join(cells)}</tr>')
    return _table(PAIRS.rstrip("."), columns(results.grid, metric), "Pair", rows)


def _reach(difference: Difference | None) -> float:
    """How far from 0 the interval of a difference goes."""
    if difference is None or difference.low is None or difference.high is None:
        return abs(difference.summary.mean or 0.0) if difference else 0.0
    return max(abs(difference.low), abs(difference.high))


def _gap(results: Results, pair: tuple[str, str], column: str, metric: str) -> str:
    """Why a difference has no number: what one of both rows lacks for good, or else runs."""
    gaps = [gap for row in pair if (gap := results.gap(row, column, metric)) is not None]
    return _gap_text(max(gaps, key=list(GAP_CLASSES).index, default=MISSING))


def _difference(difference: Difference | None, reach: float) -> str:
    """Empty if it has no number."""
    if difference is None or difference.summary.mean is None:
        return ""
    mean, _, test = difference_text(difference).partition(" ")
    bar = _interval(difference, reach)
    return f'<span class="difference"><b>{mean}</b> {bar}<span class="test">{escape(test)}</span></span>'


def _interval(difference: Difference, reach: float) -> str:
    """The interval against zero, all of a table on one scale."""

    def at(value: float) -> str:
        return f"{BAR / 2 * (1 + value / reach):.1f}"

    low, high, mean = difference.low, difference.high, difference.summary.mean
    assert mean is not None
    bar, clear = "", False
    if low is not None and high is not None:
        bar, clear = f'<line class="range" x1="{at(low)}" x2="{at(high)}" y1="7" y2="7"/>', low > 0 or high < 0
    return (
        f'<svg class="interval{" clear" if clear else ""}" viewBox="-4 0 {BAR + 8} 14" aria-hidden="true">'
        f'<line class="zero" x1="{BAR // 2}" x2="{BAR // 2}" y1="0" y2="14"/>{bar}'
        f'<circle cx="{at(mean)}" cy="7" r="3"/></svg>'
    )


def _table(caption: str, found: list[Column], corner: str, rows: list[str]) -> str:
    """In a box of its own that scrolls, so that the page does not."""
    named = groups(found)
    head = ""
    if named:
        first, cells = 0, []
        for group, members in named:
            place = f'data-from="{first}" data-to="{first + members}" colspan="{members}"'
            cells.append(f'<th scope="colgroup" {place}>{escape(group)}</th>')
            first += members
        head = f'<tr><th rowspan="2" scope="col" class="corner">{corner}</th>{"".join(cells)}</tr>'
    labels = "".join(f'<th scope="col" data-c="{i}">{escape(column.label)}</th>' for i, column in enumerate(found))
    head += f"<tr>{labels}</tr>" if named else f'<tr><th scope="col" class="corner">{corner}</th>{labels}</tr>'
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f'<caption class="unseen">{escape(caption)}</caption><thead>{head}</thead><tbody>{"".join(rows)}</tbody>'
        f'</table></div><p class="caption" aria-hidden="true">{escape(caption)}.</p>'
    )
