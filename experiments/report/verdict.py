"""What the page opens with: for each base what calibration changes, by the interval of the paired difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from experiments.report import tables
from experiments.report.benchmarks import benchmarks
from experiments.report.page_tables import Looks, data_of, difference_cell, escape, pair_name, reach_of
from experiments.report.styles import main_pairs
from experiments.report.tables import Column, bases, columns, full_name, heading, outcome, with_arrow
from experiments.results.collection import Results
from experiments.results.records import COSTS
from experiments.results.statistics import Difference


class Line(NamedTuple):
    """What calibration changes for a row and its base in one column."""

    pair: tuple[str, str]
    column: Column
    by: dict[str, Difference]  # by metric
    outcomes: dict[str, str]  # likewise


SEVERAL = (
    '<p class="caption">Differences seed by seed, with their 95 % confidence intervals. ↑ more is better, ↓ less is '
    'better. <span class="better">Better</span> or <span class="worse">worse</span> where the interval excludes 0. '
    "An arrow in a strip: the interval extends beyond it. Less forgetting is unjudged where FAIA or FAA is worse: "
    "a network that learns nothing forgets nothing.</p>"
)
SINGLE = (
    '<p class="lead">No pair can be judged yet: each has one seed.</p><p class="caption">Differences of single runs, '
    "which may be chance. ↑ more is better, ↓ less is better.</p>"
)
NOTHING = "Nothing has been run."


def verdict(results: Sequence[Results], looks: Looks) -> str:
    """Cards for each benchmark; empty if the report compares nothing. Tables of the same one are judged once."""
    if not any(result.records for result in results):
        return f'<section id="verdict"><h2>Verdict</h2><p class="lead">{NOTHING}</p></section>'
    groups = benchmarks(results)
    parts, judgeable = [], False
    for first, together in groups:
        lines = _lines(first, [metric for metric in together.grid.metrics if metric not in COSTS])
        if lines:
            title = f"<h3>{escape(heading(first.grid))}</h3>" if len(groups) > 1 else ""
            parts.append(f'{title}<div class="cards">{_cards(lines, looks)}</div>')
            judgeable |= any(difference.low is not None for line in lines for difference in line.by.values())
    words = (SEVERAL if judgeable else SINGLE) if parts else ""
    words += _alone([together for _, together in groups])
    return f'<section id="verdict"><h2>Verdict</h2>{words}{"".join(parts)}</section>' if words else ""


def _alone(results: Sequence[Results]) -> str:
    """The rows whose base was not chosen, which would silently lack here."""
    specs = {row: (spec.against, result.grid.rows) for result in results for row, spec in result.grid.rows.items()}
    found = [f"{row} (− {base})" for row, (base, rows) in specs.items() if base is not None and base not in rows]
    words = f"Not compared, because the other row was not chosen: {'; '.join(found)}."
    return f'<p class="notice">{escape(words)}</p>' if found else ""


def _lines(result: Results, metrics: Sequence[str]) -> list[Line]:
    found = []
    for row, base in main_pairs(bases(result.grid)).items():
        for column in columns(result.grid, ""):
            known = {metric: result.difference(row, column.name, metric) for metric in metrics}
            if by := {metric: d for metric, d in known.items() if d is not None and d.summary.n}:
                outcomes = {metric: outcome(result, row, column.name, metric) for metric in by}
                found.append(Line((row, base), column, by, outcomes))
    return found


def _cards(lines: Sequence[Line], looks: Looks) -> str:
    """One for each pair with a line per column; with a single column, one for all pairs with a line for each."""
    metrics = list(dict.fromkeys(metric for line in lines for metric in line.by))
    reach = {metric: reach_of(line.by.get(metric) for line in lines) for metric in metrics}
    if len({line.column for line in lines}) == 1:
        names = [pair_name(*line.pair, looks) for line in lines]
        return f'<article class="card">{_table(dict.fromkeys(metrics, ""), names, lines, reach)}</article>'
    cards = ""
    for (row, base), members in groupby(lines, key=lambda line: line.pair):
        of_pair = list(members)
        counts = {m: _count(m, [line for line in of_pair if m in line.by]) for m in metrics}
        table = _table(counts, [escape(full_name(line.column)) for line in of_pair], of_pair, reach)
        lead = _lead(metrics[0], counts[metrics[0]], of_pair)
        cards += f'<article class="card"><h4>{pair_name(row, base, looks)}</h4>{lead}{table}</article>'
    return cards


def _lead(metric: str, count: str, lines: Sequence[Line]) -> str:
    """The main metric in words."""
    means = sorted(line.by[metric].summary.mean or 0.0 for line in lines if metric in line.by)
    if not means:
        return ""
    span = " to ".join(dict.fromkeys(f"{mean:+.2f}".replace("-", "−") for mean in (means[0], means[-1])))
    return f'<p class="lead">{with_arrow(metric)} {count or "in one seed"}: {span}</p>'


def _table(counts: dict[str, str], names: Sequence[str], lines: Sequence[Line], reach: dict[str, float]) -> str:
    """All metrics beside each other, with how often each is better or worse."""
    numbers = {difference.summary.n for line in lines for difference in line.by.values()}
    seeds = numbers.pop() if len(numbers) == 1 else None
    corner = "(seeds)" if seeds is None else f"{seeds} seed{'s' * (seeds > 1)}"
    head = "".join(
        f'<th scope="col">{with_arrow(metric)}{count and f"<small>{count}</small>"}</th>'
        for metric, count in counts.items()
    )
    body = ""
    for name, line in zip(names, lines, strict=True):
        known = ((m, line.by.get(m), line.outcomes.get(m, tables.UNCLEAR)) for m in counts)
        cells = "".join(f"<td>{difference_cell(d, m, reach[m], found, True, seeds)}</td>" for m, d, found in known)
        body += f'<tr{data_of(line.column)}><th scope="row">{name}</th>{cells}</tr>'
    return (
        f'<table><thead><tr><th scope="col"><small>{corner}</small></th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _count(metric: str, lines: Sequence[Line]) -> str:
    """`better in 4 and worse in 1 of 6`; nothing if there is no interval to judge by."""
    if all(line.by[metric].low is None for line in lines):
        return ""
    outcomes = Counter(line.outcomes[metric] for line in lines)
    told = [f'<span class="{o}">{o} in {outcomes[o]}</span>' for o in (tables.BETTER, tables.WORSE) if outcomes[o]]
    return f"{' and '.join(told)} of {len(lines)}" if told else "no clear difference"
