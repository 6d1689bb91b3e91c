"""The tables of the page: ours with the paper's numbers below them, and the differences of pairs."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from statistics import median
from typing import NamedTuple

from experiments.grid import Grid, PaperValue
from experiments.report import tables
from experiments.report.figures import DrawnPanel, Looks
from experiments.report.tables import Column
from experiments.results.collection import ABSENT, NOT_AVAILABLE, NOT_RUN, UNDEFINED, Results
from experiments.results.records import COSTS
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
    for name, places in _metric_tables(grid):
        numbers, differences = _numbers(results, name, places, looks), _differences(results, name, places, looks)
        head = f"<h3>{escape(name)}</h3>" if name else ""  # of a single column without a name the section's is enough
        parts.append(f'{head}<div class="metric">{numbers}{differences}</div>')
    if found := tables.notes(results, grid.rows):
        of_pairs = tables.notes(results, [row for row in grid.rows if looks[row].of_interest] or grid.rows)
        views = {True: "", False: f' class="{ONLY_ALL}"'}
        lines = "".join(f"<li{views[note in of_pairs]}>{escape(note)}</li>" for note in found)
        parts.append("<ul class=notes>" + re.sub("`([^`<]+)`", r"<code>\1</code>", lines) + "</ul>")
    return "\n".join([*parts, "</div></section>"])


def _metric_tables(grid: Grid) -> list[tuple[str, list[Place]]]:
    """Names and columns: a table for each metric, or one with all metrics if the grid has one column."""
    if len(grid.columns) == 1 < len(grid.metrics):
        (column,) = tables.columns(grid, "")
        places = [Place(m, column._replace(group=""), tables.with_arrow(m)) for m in grid.metrics]
        return [(tables.full_name(column), places)]
    named = []
    for metric in grid.metrics:
        found = tables.columns(grid, metric)
        labels = [column.label if tables.groups(found) else tables.full_name(column) for column in found]
        named.append((tables.with_arrow(metric), [Place(metric, *place) for place in zip(found, labels, strict=True)]))
    return named


def swatch(row: str, looks: Looks) -> str:
    """The colour of a method in the figures."""
    return f'<i class="key k{list(looks).index(row)}"></i>'


def pair_name(row: str, against: str, looks: Looks) -> str:
    return f"{swatch(row, looks)}{escape(row)} <span class=against>− {escape(against)}</span>"


def scale_notice(results: Sequence[Results]) -> str:
    """What the paper's numbers beside ours mean; nothing if there are none."""
    beside = [r for r in results if r.grid.paper]
    parts = []
    if any(not tables.at_paper_scale(r.grid) for r in beside):
        parts.append(
            '<p class="notice"><strong>Not the paper’s scale.</strong> The paper’s numbers stand beside ours for '
            "orientation only: networks, epochs or data differ, so the differences mean nothing.</p>"
        )
    if any(tables.at_paper_scale(r.grid) for r in beside):
        entries = "".join(
            f'<li><span class="verdict {verdict}">{sign} ±0.00</span> {escape(words)}</li>'
            for verdict, (sign, words) in tables.LEGEND.items()
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
    return _table(_caption(name, words), places, "Method", rows)


def _cell(results: Results, row: str, place: Place) -> str:
    metric, column = place.metric, place.column.name
    gap = results.gap(row, column, metric)
    summary = results.summary(row, column, metric)
    if gap is None:
        mean, error, n = tables.number_parts(summary)
        error = "" if summary.se is None else f"{error} "
        lacking = len(results.grid.seeds) - summary.n
        note = f' <span class="gap missing">{lacking} not run</span>' if lacking else ""
        ours = f'<b>{mean}</b> <span class="se">{error}{n}</span>{note}'
    else:
        ours = _gap_text(gap)
    paper = results.grid.paper.get(metric, {}).get(row, {}).get(column)
    return ours + ("" if paper is None else _paper(results, summary, paper))


def _gap_text(gap: str) -> str:
    return f'<span class="gap {GAP_CLASSES[gap]}">{GAP_WORDS.get(gap, gap)}</span>'


def _paper(results: Results, summary: Summary, paper: PaperValue) -> str:
    found = tables.agreement(summary, paper) if tables.at_paper_scale(results.grid) else None
    verdict = ""
    if found is not None:
        sign, words = tables.LEGEND[found.verdict]
        verdict = (
            f' <span class="verdict {found.verdict}" title="{escape(words)}">{sign} {found.difference:+.2f}'
            f'<span class="unseen"> ({found.verdict})</span></span>'
        )
    return f'<span class="paper">paper {escape(paper.text)}{verdict}</span>'


def _differences(results: Results, name: str, places: list[Place], looks: Looks) -> str:
    known = {place.metric: tables.pairs(results, place.metric) for place in places}
    reach = {metric: reach_of(chain.from_iterable(by_row.values())) for metric, by_row in known.items()}
    rows = []
    for pair in tables.bases(results.grid).items():
        if any(pair[0] in by_row for by_row in known.values()):
            cells = [f'<td data-c="{i}">{_difference(results, pair, p, reach)}</td>' for i, p in enumerate(places)]
            rows.append(f'<tr><th scope="row">{pair_name(*pair, looks)}</th>{"".join(cells)}</tr>')
    return _table(_caption(name, tables.PAIRS.rstrip(".")), places, "Pair", rows) if rows else ""


def _caption(name: str, words: str) -> str:
    return f"{name}: {words}" if name else words[0].upper() + words[1:]


def _difference(results: Results, pair: tuple[str, str], place: Place, reach: dict[str, float]) -> str:
    """Or why there is none: what one of both rows lacks for good, or else runs."""
    metric, column = place.metric, place.column.name
    difference, found = results.difference(pair[0], column, metric), tables.outcome(results, pair[0], column, metric)
    if shown := difference_cell(difference, metric, reach[metric], found):
        return shown
    gaps = [gap for row in pair if (gap := results.gap(row, column, metric)) is not None]
    return _gap_text(max(gaps, key=list(GAP_CLASSES).index, default=NOT_RUN))


def reach_of(differences: Iterable[Difference | None]) -> float:
    """How far from 0 strips show intervals: twice the median, since a few far ones would make all others dots."""
    known = [d for d in differences if d is not None]
    ends = [max(-d.low, d.high) for d in known if d.low is not None and d.high is not None]
    return (min(max(ends), 2 * median(ends)) or max(ends) or 1.0) if ends else 1.0


def difference_cell(
    difference: Difference | None, metric: str, reach: float, judged: str, brief: bool = False, seeds: int | None = None
) -> str:
    """Number, interval and outcome; empty if it has no number."""
    if difference is None or difference.summary.mean is None:
        return ""
    mean, _, test = tables.difference_text(difference, brief or metric in COSTS, seeds).replace("-", "−").partition(" ")
    strip = "" if metric in COSTS else _interval(difference, reach)
    word = "" if judged == tables.UNCLEAR else f'<span class="outcome">{judged}</span>'
    return (
        f'<span class="difference {judged}"><b>{mean}</b> {strip}{word}<span class="test">{escape(test)}</span></span>'
    )


def _interval(difference: Difference, reach: float) -> str:
    """The interval against zero, all of a metric on one scale, with an arrow at an end that lies beyond."""
    low, high, mean = difference.low, difference.high, difference.summary.mean
    if low is None or high is None or mean is None:  # of one seed
        return ""

    def at(value: float) -> str:
        return f"{BAR / 2 * (1 + max(-1.0, min(1.0, value / reach))):.1f}"

    marks = f'<circle cx="{at(mean)}" cy="7" r="3.5"/>' if abs(mean) <= reach else ""
    marks += '<path class="beyond" d="M2 2l-6 5 6 5z"/>' if low < -reach else ""
    marks += f'<path class="beyond" d="M{BAR - 2} 2l6 5-6 5z"/>' if high > reach else ""
    return (
        f'<svg class="interval" viewBox="-5 0 {BAR + 10} 14" aria-hidden="true">'
        f'<line class="zero" x1="{BAR // 2}" x2="{BAR // 2}" y1="0" y2="14"/>'
        f'<line class="range" x1="{at(low)}" x2="{at(high)}" y1="7" y2="7"/>{marks}</svg>'
    )


def data_of(place: Column | DrawnPanel) -> str:
    """The attributes by which a dataset or a buffer is filtered."""
    values = {"dataset": place.dataset, "buffer": place.buffer}
    return "".join(f' data-{name}="{escape(value)}"' for name, value in values.items() if value is not None)


def _table(caption: str, places: list[Place], corner: str, rows: list[str]) -> str:
    """In a box of its own that scrolls, so that the page does not."""
    named = tables.groups([place.column for place in places])
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
