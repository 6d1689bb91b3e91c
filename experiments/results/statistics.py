"""Mean and spread over seeds, differences between two methods over the seeds that both have, and rank correlation.

What too few runs leave undefined is None, and shown as –.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import ndtri, stdtr, stdtrit


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


@dataclass(frozen=True)
class Correlation:
    """Spearman's ρ over n pairs, and a confidence interval; None where there are too few."""

    n: int
    rho: float | None
    low: float | None
    high: float | None


def summarise(values: Sequence[float]) -> Summary:
    n = len(values)
    if n == 0:
        return Summary(0, None, None, None)
    mean = math.fsum(values) / n
    if n == 1:
        return Summary(1, mean, None, None)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return Summary(n, mean, sd, sd / math.sqrt(n))


def paired_difference(a: Mapping[int, float], b: Mapping[int, float], confidence: float = 0.95) -> Difference:
    """a − b by seed. Equal seeds share initialisation and batches, so their noise cancels in part."""
    summary = summarise([a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())])
    if summary.mean is None or summary.se is None:
        return Difference(summary, None, None, None)
    degrees = summary.n - 1
    half_width = t_quantile((1 + confidence) / 2, degrees) * summary.se
    return Difference(summary, summary.mean - half_width, summary.mean + half_width, _p_value(summary, degrees))


def _p_value(summary: Summary, degrees: int) -> float | None:
    """Two-sided. Without any spread t is 0/0 for equal methods, which says nothing, and infinite otherwise."""
    assert summary.mean is not None and summary.se is not None
    if summary.se == 0:
        return None if summary.mean == 0 else 0.0
    return float(2 * stdtr(degrees, -abs(summary.mean / summary.se)))


def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t distribution."""
    return float(stdtrit(degrees, probability))


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the highest; equal values share the mean of their ranks."""
    above = [sum(other > value for other in values) for value in values]
    return [1 + n + (values.count(value) - 1) / 2 for n, value in zip(above, values, strict=True)]


def spearman(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> Correlation:
    """The correlation of ranks. Its interval is that of Fisher's z with the variance (1 + ρ²/2) / (n − 3) that Bonett
    and Wright (2000) give for ranks. Undefined if all values of one side are equal.
    """
    n = len(a)
    x, y = ([rank - (n + 1) / 2 for rank in ranks(list(values))] for values in (a, b))
    scale = math.sqrt(math.fsum(v * v for v in x) * math.fsum(v * v for v in y))
    if scale == 0:
        return Correlation(n, None, None, None)
    rho = math.fsum(v * w for v, w in zip(x, y, strict=True)) / scale
    if n <= 3 or abs(rho) >= 1:
        return Correlation(n, rho, None, None)
    half_width = float(ndtri((1 + confidence) / 2)) * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return Correlation(n, rho, math.tanh(math.atanh(rho) - half_width), math.tanh(math.atanh(rho) + half_width))
