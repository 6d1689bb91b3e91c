"""What the page opens with: for each base what calibration changes, by the interval of the paired difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from experiments.report.benchmarks import benchmarks
from experiments.report.page_tables import Looks, data_of, difference_cell, escape, pair_name, reach_of
from experiments.report.styles import main_pairs
from experiments.report.tables import BETTER, WORSE, Column, columns, full_name, heading, judged, with_arrow
from experiments.results.collection import Results
from experiments.results.records import TIMES
from experiments.results.statistics import Difference

Found = dict[str, dict[Column, Difference]]  # by metric and column


def verdict(results: Sequence[Results], looks: Looks) -> str:
    """A card for each base; empty if the report compares nothing. Tables of the same benchmark are judged once."""
    groups = benchmarks(results)
    parts = []
    for first, together in groups:
        metrics = [metric for metric in together.grid.metrics if metric not in TIMES]
        if cards := _cards(first, metrics, looks):
            title = f"<h3>{escape(heading(first.grid))}</h3>" if len(groups) > 1 else ""
            parts.append(f'{title}<div class="cards">{"".join(cards)}</div>')
    if not parts:
        return ""
    words = (
        "Differences seed by seed, with their 95 % confidence intervals. ↑ more is better, ↓ less is better. "
        '<span class="better">Better</span> or <span class="worse">worse</span> where the interval excludes 0.'
    )
    return f'<section id="verdict"><h2>Verdict</h2><p class="caption">{words}</p>{"".join(parts)}</section>'


def _cards(result: Results, metrics: Sequence[str], looks: Looks) -> list[str]:
    rows = result.grid.rows
    pairs = main_pairs({row: base for row, spec in rows.items() if (base := spec.against) in rows})
    cards = []
    for row, base in pairs.items():
        found: Found = {}
        for metric in metrics:
            for column in columns(result.grid, ""):
                difference = result.difference(row, column.name, metric)
                if difference is not None and difference.summary.n:
                    found.setdefault(metric, {})[column] = difference
        if found:
            cards.append(f'<article class="card"><h4>{pair_name(row, base, looks)}</h4>{_card(found)}</article>')
    return cards


def _card(found: Found) -> str:
    """The main metric in words; then a line per column of the table, and all metrics beside each other."""
    metric, differences = next(iter(found.items()))
    means = sorted(d.summary.mean for d in differences.values() if d.summary.mean is not None)
    span = " to ".join(dict.fromkeys(f"{mean:+.2f}".replace("-", "−") for mean in (means[0], means[-1])))
    head = "".join(f'<th scope="col">{with_arrow(m)}<small>{_count(m, by)}</small></th>' for m, by in found.items())
    reach = {name: reach_of(by_column.values()) for name, by_column in found.items()}
    lines = []
    for column in dict.fromkeys(column for by_column in found.values() for column in by_column):
        shown = [difference_cell(by.get(column), m, reach[m], brief=True) for m, by in found.items()]
        cells = "".join(f"<td>{cell}</td>" for cell in shown)
        lines.append(f'<tr{data_of(column)}><th scope="row">{escape(full_name(column))}</th>{cells}</tr>')
    seeds = max(d.summary.n for d in differences.values())
    return (
        f'<p class="lead">{with_arrow(metric)} {_count(metric, differences)}: {span}</p>'
        f'<table><thead><tr><th scope="col"><small>{seeds} seed{"s" * (seeds > 1)}</small></th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def _count(metric: str, differences: dict[Column, Difference]) -> str:
    """`better in 4 and worse in 1 of 6`."""
    if all(difference.low is None for difference in differences.values()):
        return "cannot be judged with one seed"
    outcomes = Counter(judged(d, metric) for d in differences.values())
    told = [f'<span class="{o}">{o} in {outcomes[o]}</span>' for o in (BETTER, WORSE) if outcomes[o]]
    return f"{' and '.join(told)} of {len(differences)}" if told else "no clear difference"
