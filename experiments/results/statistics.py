"""Mean and spread over seeds, and differences between two methods over the seeds that both have.

What too few runs leave undefined is None, and shown as –.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Summary:
    """n runs with their mean, sample standard deviation (n − 1) and standard error sd/√n."""

    n: int
    mean: float | None
    sd: float | None
    se: float | None


@dataclass(frozen=True)
class Difference:
    """a − b seed by seed: its summary, a confidence interval of the mean, and the p-value of the paired t-test."""

    summary: Summary
    low: float | None
    high: float | None
    p: float | None


def summarise(values: Sequence[float]) -> Summary:
    n = len(values)
    if n == 0:
        return Summary(0, None, None, None)
    mean = math.fsum(values) / n
    if n == 1:
        return Summary(1, mean, None, None)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return Summary(n, mean, sd, sd / math.sqrt(n))


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> Difference:
    """a − b by seed. Equal seeds share initialisation and batches, so their noise cancels in part."""
    summary = summarise([a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())])
    if summary.mean is None or summary.se is None:
        return Difference(summary, None, None, None)
    degrees = summary.n - 1
    half_width = float(stdtrit(degrees, (1 + CONFIDENCE) / 2)) * summary.se
    return Difference(summary, summary.mean - half_width, summary.mean + half_width, _p_value(summary, degrees))


def _p_value(summary: Summary, degrees: int) -> float | None:
    """Two-sided. Without any spread t is 0/0 for equal methods, which says nothing, and infinite otherwise."""
    assert summary.mean is not None and summary.se is not None
    if summary.se == 0:
        return None if summary.mean == 0 else 0.0
    return float(2 * stdtr(degrees, -abs(summary.mean / summary.se)))
