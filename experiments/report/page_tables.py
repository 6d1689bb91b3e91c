"""The tables of the page: ours with the paper's numbers below them, and the differences of pairs."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from experiments.grid import Grid, PaperValue
from experiments.report.figures import Looks, Panel
from experiments.report.tables import (
    LEGEND,
    PAIRS,
    UNCLEAR,
    Column,
    agreement,
    at_paper_scale,
    columns,
    difference_text,
    full_name,
    groups,
    judged,
    missing,
    number_parts,
    pairs,
    with_arrow,
)
from experiments.results.collection import ABSENT, NOT_AVAILABLE, NOT_RUN, UNDEFINED, Results
from experiments.results.statistics import Difference, Summary

# From what may still come to what never will.
GAP_CLASSES = {NOT_RUN: "missing", NOT_AVAILABLE: "missing", UNDEFINED: "undefined", ABSENT: "absent"}
GAP_WORDS = {ABSENT: "not in the grid"}
ONLY_PAIRS, ONLY_ALL = "only-pairs", "only-all"  # classes: shown in one of the page's two views
BAR = 120  # units that the interval of a difference is drawn in
escape = html.escape


class Place(NamedTuple):
    """A column of a table on the page."""

    metric: str
    column: Column
    label: str


def section(results: Results, anchor: str, title: str, looks: Looks) -> str:
    """A table with all its metrics, pairs and notes."""
    grid = results.grid
    parts = [f'<section id="{anchor}" class="result"><h2>{escape(title)}</h2>']
    parts.append('<p class="nothing" hidden>The filters hide all of this table.</p><div class="content">')
    for name, places in _tables(grid):
        numbers, differences = _numbers(results, name, places, looks), _differences(results, name, places, looks)
        parts.append(f'<h3>{escape(name)}</h3><div class="metric">{numbers}{differences}</div>')
    notes = [*grid.notes, *missing([results.expansion])]
    if notes:
        parts.append("<ul class=notes>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>")
    return "\n".join([*parts, "</div></section>"])


def _tables(grid: Grid) -> list[tuple[str, list[Place]]]:
    """Names and columns: a table for each metric, or one with all metrics if the grid has one column."""
    if len(grid.columns) == 1 < len(grid.metrics):
        (column,) = columns(grid, "")
        return [(full_name(column), [Place(m, column._replace(group=""), with_arrow(m)) for m in grid.metrics])]
    tables = []
    for metric in grid.metrics:
        found = columns(grid, metric)
        labels = [column.label if groups(found) else full_name(column) for column in found]
        tables.append((with_arrow(metric), [Place(metric, *place) for place in zip(found, labels, strict=True)]))
    return tables


def swatch(row: str, looks: Looks) -> str:
    """The colour of a method in the figures; hollow if its line is dashed."""
    return f'<i class="key k{list(looks).index(row)}"></i>'


def pair_name(row: str, against: str, looks: Looks) -> str:
    return f"{swatch(row, looks)}{escape(row)} <span class=against>− {escape(against)}</span>"


def scale_notice(results: Sequence[Results]) -> str:
    """What the paper's numbers beside ours mean; nothing if there are none."""
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


def _numbers(results: Results, name: str, places: list[Place], looks: Looks) -> str:
    others = {row for row in results.grid.rows if not looks[row].of_interest}
    some_pair = len(others) < len(results.grid.rows)  # a table without any shows all its rows in both views
    rows = []
    for row in results.grid.rows:
        cells = [f'<td data-c="{i}">{_cell(results, row, place)}</td>' for i, place in enumerate(places)]
        view = f' class="{ONLY_ALL}"' if some_pair and row in others else ""
        rows.append(f'<tr{view}><th scope="row">{swatch(row, looks)}{escape(row)}</th>{"".join(cells)}</tr>')
    beside = any(results.grid.paper.get(place.metric) for place in places)
    words = "mean ± standard error (number of seeds)" + (", below it the paper’s number" if beside else "")
    return _table(f"{name}: {words}", places, "Method", rows)


def _cell(results: Results, row: str, place: Place) -> str:
    metric, column = place.metric, place.column.name
    gap = results.gap(row, column, metric)
    summary = results.summary(row, column, metric)
    if gap is None:
        mean, error, n = number_parts(summary)
        lacking = len(results.grid.seeds) - summary.n
        note = f' <span class="gap missing">{lacking} not run</span>' if lacking else ""
        ours = f'<b>{mean}</b> <span class="se">{error} {n}</span>{note}'
    else:
        ours = _gap_text(gap)
    paper = results.grid.paper.get(metric, {}).get(row, {}).get(column)
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


def _differences(results: Results, name: str, places: list[Place], looks: Looks) -> str:
    known = {place.metric: pairs(results, place.metric) for place in places}
    reach = {
        metric: reach_of(d for differences in by_row.values() for d in differences) for metric, by_row in known.items()
    }
    rows = []
    for row, spec in results.grid.rows.items():
        if any(row in by_row for by_row in known.values()):
            pair = row, str(spec.against)
            cells = [f'<td data-c="{i}">{_difference(results, pair, p, reach)}</td>' for i, p in enumerate(places)]
            rows.append(f'<tr><th scope="row">{pair_name(*pair, looks)}</th>{"".join(cells)}</tr>')
    return _table(f"{name}: {PAIRS}".rstrip("."), places, "Pair", rows) if rows else ""


def _difference(results: Results, pair: tuple[str, str], place: Place, reach: dict[str, float]) -> str:
    """Or why there is none: what one of both rows lacks for good, or else runs."""
    metric, column = place.metric, place.column.name
    if shown := difference_cell(results.difference(pair[0], column, metric), metric, reach[metric]):
        return shown
    gaps = [gap for row in pair if (gap := results.gap(row, column, metric)) is not None]
    return _gap_text(max(gaps, key=list(GAP_CLASSES).index, default=NOT_RUN))


def reach_of(differences: Iterable[Difference | None]) -> float:
    """How far from 0 the intervals go."""
    ends = [abs(end) for d in differences if d is not None for end in (d.low, d.high) if end is not None]
    return max(ends, default=0.0) or 1.0


def difference_cell(
    difference: Difference | None, metric: str, reach: float, brief: bool = False, seeds: int | None = None
) -> str:
    """Number, interval and outcome; empty if it has no number."""
    if difference is None or difference.summary.mean is None:
        return ""
    mean, _, test = difference_text(difference, brief, seeds).replace("-", "−").partition(" ")
    outcome = judged(difference, metric)
    word = "" if outcome == UNCLEAR else f'<span class="outcome">{outcome}</span>'
    return (
        f'<span class="difference {outcome}"><b>{mean}</b> {_interval(difference, reach)}{word}'
        f'<span class="test">{escape(test)}</span></span>'
    )


def _interval(difference: Difference, reach: float) -> str:
    """The interval against zero, all of a table on one scale; nothing for one seed, which has none."""
    low, high, mean = difference.low, difference.high, difference.summary.mean
    if low is None or high is None or mean is None:
        return ""

    def at(value: float) -> str:
        return f"{BAR / 2 * (1 + value / reach):.1f}"

    return (
        f'<svg class="interval" viewBox="-4 0 {BAR + 8} 14" aria-hidden="true">'
        f'<line class="zero" x1="{BAR // 2}" x2="{BAR // 2}" y1="0" y2="14"/>'
        f'<line class="range" x1="{at(low)}" x2="{at(high)}" y1="7" y2="7"/>'
        f'<circle cx="{at(mean)}" cy="7" r="3.5"/></svg>'
    )


def data_of(place: Column | Panel) -> str:
    """The attributes by which a dataset or a buffer is filtered."""
    values = {"dataset": place.dataset, "buffer": place.buffer}
    return "".join(f' data-{name}="{escape(value)}"' for name, value in values.items() if value is not None)


def _table(caption: str, places: list[Place], corner: str, rows: list[str]) -> str:
    """In a box of its own that scrolls, so that the page does not."""
    named = groups([place.column for place in places])
    head, first = "", 0
    for group, members in named:
        span = f'data-from="{first}" data-to="{first + members}" colspan="{members}"'
        head += f'<th scope="colgroup" {span}>{escape(group)}</th>'
        first += members
    labels = "".join(
        f'<th scope="col" data-c="{i}"{data_of(place.column)}>{escape(place.label)}</th>'
        for i, place in enumerate(places)
    )
    if named:
        head = f'<tr><th rowspan="2" scope="col" class="corner">{corner}</th>{head}</tr><tr>{labels}</tr>'
    else:
        head = f'<tr><th scope="col" class="corner">{corner}</th>{labels}</tr>'
    return (
        '<div class="table"><p class="hint" aria-hidden="true">scroll sideways for more →</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f'<caption class="unseen">{escape(caption)}</caption><thead>{head}</thead><tbody>{"".join(rows)}</tbody>'
        f'</table></div><p class="caption" aria-hidden="true">{escape(caption)}.</p></div>'
    )
