"""Mean, spread and paired differences, by hand and against printed tables of Student's t."""

from __future__ import annotations

import math

import pytest

from experiments.results.statistics import Summary, paired_difference, summarise


def test_summary_by_hand() -> None:
    """2, 4, 9: mean 5, squares 9 + 1 + 16 = 26, sd² = 26/2 = 13."""
    result = summarise([2.0, 4.0, 9.0])
    assert (result.n, result.mean) == (3, 5.0)
    assert result.sd == pytest.approx(math.sqrt(13), abs=1e-12)
    assert result.se == pytest.approx(math.sqrt(13 / 3), abs=1e-12)


def test_what_one_or_no_run_cannot_tell_is_undefined() -> None:
    assert summarise([]) == Summary(0, None, None, None)
    assert summarise([7.0]) == Summary(1, 7.0, None, None)
    one = paired_difference({0: 3.0, 1: 5.0}, {1: 4.0, 2: 9.0})
    assert one.summary == Summary(1, 1.0, None, None)
    assert (one.low, one.high, one.p) == (None, None, None)


def test_paired_difference_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, sd 1, se 1/√3, t = 2√3 with 2 degrees of freedom; seeds of one side are left out.

    With 2 degrees of freedom P(|T| > t) = 1 − t/√(t² + 2), here 1 − √(12/14).
    """
    a, b = {0: 11.0, 1: 12.0, 2: 13.0, 7: 99.0}, {0: 10.0, 1: 10.0, 2: 10.0, 8: 1.0}
    result = paired_difference(a, b)
    assert result.summary == Summary(3, 2.0, 1.0, pytest.approx(1 / math.sqrt(3)))
    assert result.p == pytest.approx(1 - math.sqrt(12 / 14), abs=1e-12)
    half_width = 4.30265273 / math.sqrt(3)
    assert result.low == pytest.approx(2 - half_width, abs=1e-6)
    assert result.high == pytest.approx(2 + half_width, abs=1e-6)


def test_differences_without_spread() -> None:
    equal = paired_difference({0: 5.0, 1: 6.0}, {0: 5.0, 1: 6.0})
    assert (equal.low, equal.high, equal.p) == (0.0, 0.0, None)
    assert paired_difference({0: 6.0, 1: 7.0}, {0: 5.0, 1: 6.0}).p == 0.0


def test_the_sign_of_a_difference_does_not_change_its_p_value() -> None:
    a, b = {0: 1.0, 1: 5.0, 2: 2.5}, {0: 2.0, 1: 3.0, 2: 2.0}
    forth, back = paired_difference(a, b), paired_difference(b, a)
    assert forth.p == back.p
    assert (forth.low, forth.high) == (-back.high, -back.low)
