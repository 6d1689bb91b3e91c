"""How far our methods stand in the paper's order: Spearman's rank correlation of a metric's columns, theirs and ours.

python -m docs.figures.ranks docs/results/small/main/results.json
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import norm, rankdata

from experiments.report.tables import table
from experiments.results.collection import Results
from experiments.results.statistics import CONFIDENCE
from experiments.results.stored import read_stored

METRIC = "FAIA"
TOLERATED = 3  # ranks; a method that is farther from its place is to be looked into


@dataclass(frozen=True)
class Correlation:
    """Spearman's ρ over n pairs, and a confidence interval; None where there are too few."""

    n: int
    rho: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Order:
    """The methods of a column that both have, with (paper's rank, ours), and the correlation of the two: of all, and
    of the base methods alone. A base and its DGC form lie close together, so all of them are no independent pairs.
    """

    places: dict[str, tuple[float, float]]
    correlation: Correlation
    of_bases: Correlation

    def out_of_place(self) -> list[str]:
        return [method for method, (theirs, ours) in self.places.items() if abs(theirs - ours) > TOLERATED]


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the highest; equal values share the mean of their ranks."""
    return rankdata([-value for value in values]).tolist()


def spearman(a: Sequence[float], b: Sequence[float]) -> Correlation:
    """The correlation of ranks. Its interval is that of Fisher's z with the variance (1 + ρ²/2) / (n − 3) that Bonett
    and Wright (2000) give for ranks. Undefined if all values of one side are equal.
    """
    n = len(a)
    if len(set(a)) < 2 or len(set(b)) < 2:
        return Correlation(n, None, None, None)
    rho = statistics.correlation(ranks(a), ranks(b))
    if n <= 3 or abs(rho) >= 1:
        return Correlation(n, rho, None, None)
    half_width = float(norm.ppf((1 + CONFIDENCE) / 2)) * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return Correlation(n, rho, math.tanh(math.atanh(rho) - half_width), math.tanh(math.atanh(rho) + half_width))


def order(found: Results, column: str) -> Order:
    """A number of the paper counts once, though two of our rows may stand beside it: for the row of the same name."""
    paper: dict[str, float] = {}
    printed: set[str] = set()
    for row, by_column in found.grid.paper.get(METRIC, {}).items():
        value = by_column.get(column)
        if value is not None and value.text not in printed and found.by_seed(row, column, METRIC):
            paper[row] = value.mean
            printed.add(value.text)
    ours = {row: found.summary(row, column, METRIC).mean or 0.0 for row in paper}
    places = dict(zip(paper, zip(ranks([*paper.values()]), ranks([*ours.values()]), strict=True), strict=True))
    bases = [row for row in paper if found.grid.rows[row].against is None]
    of_bases = spearman([paper[row] for row in bases], [ours[row] for row in bases])
    return Order(places, spearman([*paper.values()], [*ours.values()]), of_bases)


def sentence(column: str, found: Order) -> str:
    """The correlations in words; empty if there are too few methods."""
    if found.correlation.rho is None:
        return ""
    of_all = f"{_with_interval(found.correlation)} over the {found.correlation.n} methods that both have"
    if found.of_bases.rho is None or found.of_bases.n == found.correlation.n:
        return f"**{column}**: Spearman's ρ = {of_all}."
    of_bases = f"{_with_interval(found.of_bases)} over the {found.of_bases.n} that are not DGC forms of another"
    return f"**{column}**: Spearman's ρ = {of_all}; {of_bases}."


def _with_interval(found: Correlation) -> str:
    return f"{found.rho:.2f}" + ("" if found.low is None else f" (95 % interval [{found.low:.2f}, {found.high:.2f}])")


def describe(found: Results, column: str) -> str:
    """The correlation in a sentence, and the methods that are out of place; empty if there are too few."""
    found_order = order(found, column)
    said, far = sentence(column, found_order), found_order.out_of_place()
    if not said:
        return ""
    if not far:
        return f"{said} No method is more than {TOLERATED} ranks from its place."
    rows = [[method, *(f"{rank:g}" for rank in found_order.places[method])] for method in far]
    lines = [said, f"More than {TOLERATED} ranks from their place:", table([["", "the paper's rank", "ours"], *rows])]
    return "\n\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, metavar="RESULTS", help="a results.json that has the table faia")
    for found in read_stored(parser.parse_args().results):
        for column in found.grid.columns if METRIC in found.grid.paper else []:
            print(describe(found, column))


if __name__ == "__main__":
    main()
