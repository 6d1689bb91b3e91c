"""The metrics against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from utils import metrics

pytestmark = pytest.mark.numeric

NAN = float("nan")

# AA = 90, (70 + 80)/2 = 75, (40 + 50 + 84)/3 = 58
A3 = np.array([[90, NAN, NAN], [70, 80, NAN], [40, 50, 84]], dtype=float)


def test_three_tasks_by_hand():
    np.testing.assert_allclose(metrics.average_accuracy(A3), [90, 75, 58])
    assert metrics.final_average_accuracy(A3) == pytest.approx(58)
    assert metrics.final_average_incremental_accuracy(A3) == pytest.approx((90 + 75 + 58) / 3)
    assert metrics.final_forgetting(A3) == pytest.approx(((90 - 40) + (80 - 50)) / 2)
    assert metrics.backward_transfer(A3) == pytest.approx(((40 - 90) + (50 - 80)) / 2)


def test_forgetting_takes_the_peak_which_need_not_be_the_diagonal():
    a = np.array([[60, NAN, NAN], [75, 80, NAN], [70, 50, 84]], dtype=float)
    assert metrics.final_forgetting(a) == pytest.approx(((75 - 70) + (80 - 50)) / 2)
    assert metrics.backward_transfer(a) == pytest.approx(((70 - 60) + (50 - 80)) / 2)


def test_forgetting_is_negative_where_the_last_task_improved_the_old_ones():
    a = np.array([[60, NAN, NAN], [62, 50, NAN], [66, 58, 84]], dtype=float)
    assert metrics.final_forgetting(a) == pytest.approx(((62 - 66) + (50 - 58)) / 2)  # = -6
    assert metrics.summarise(a)["FF"] == pytest.approx(-6)


def test_two_tasks_have_one_forgotten_task():
    a = np.array([[90, NAN], [30, 80]], dtype=float)
    assert metrics.summarise(a) == {
        "FAA": pytest.approx(55),
        "FAIA": pytest.approx(72.5),
        "FF": pytest.approx(60),
        "BWT": pytest.approx(-60),
        "FWT": None,
    }


def test_one_task_has_neither_forgetting_nor_transfer():
    summary = metrics.summarise(np.array([[70.0]]), before=np.array([10.0]), random=np.array([9.0]))
    assert summary == {"FAA": 70.0, "FAIA": 70.0, "FF": None, "BWT": None, "FWT": None}


def test_a_joint_run_knows_only_its_last_row():
    a = np.full((3, 3), NAN)
    a[2] = [60, 70, 80]
    assert metrics.summarise(a) == {"FAA": 70.0, "FAIA": None, "FF": None, "BWT": None, "FWT": None}


def test_a_stopped_run_is_measured_over_the_tasks_it_ran():
    stopped = np.full((5, 5), NAN)
    stopped[:3, :3] = A3
    before, random = np.array([NAN, 20, 30, NAN, NAN]), np.array([10.0, 12, 14, 16, 18])
    assert metrics.tasks_run(stopped) == 3
    summary = metrics.summarise(stopped, before, random)
    assert summary == metrics.summarise(A3, before[:3], random[:3])
    assert summary["FAA"] == pytest.approx(58)
    assert summary["FWT"] == pytest.approx(((20 - 12) + (30 - 14)) / 2)


def test_nothing_measured_gives_none_everywhere():
    assert set(metrics.summarise(np.full((3, 3), NAN)).values()) == {None}


def test_a_hole_in_the_matrix_undefines_what_needs_it():
    """A run that began at task 2 (--start_from) knows its final accuracy, but neither peaks nor averages."""
    a = A3.copy()
    a[0, 0] = NAN
    summary = metrics.summarise(a)
    assert summary["FAA"] == pytest.approx(58)
    assert [summary[name] for name in ("FAIA", "FF", "BWT")] == [None, None, None]


def test_accuracies_on_future_tasks_are_not_read():
    future = A3.copy()
    future[np.triu_indices(3, 1)] = 99.0
    assert metrics.summarise(future) == metrics.summarise(A3)


def test_forward_transfer_skips_the_first_task():
    before, random = np.array([NAN, 15.0, 25.0]), np.array([50.0, 10.0, 12.0])
    assert metrics.forward_transfer(before, random) == pytest.approx(((15 - 10) + (25 - 12)) / 2)
    assert metrics.summarise(A3, before, random)["FWT"] == pytest.approx(9)


def test_forgetting_and_final_accuracy_add_up_to_the_mean_peak():
    """FF + mean_{j<T} a[T,j] = mean peak accuracy, which is at most 100."""
    a = np.random.default_rng(0).uniform(0, 100, (10, 10))
    peaks = [a[j:9, j].max() for j in range(9)]
    total = metrics.final_forgetting(a) + a[9, :9].mean()
    assert total == pytest.approx(np.mean(peaks))
    assert total <= 100


def test_every_metric_has_its_definition():
    assert list(metrics.summarise(A3)) == list(metrics.DEFINITIONS)
    assert all(metrics.DEFINITIONS.values())
