"""Metrics as pure functions of the accuracy matrix.

a[k, j] is the accuracy in percent on task j after training task k (numpy, T×T), NaN where not measured.
Only the lower triangle (j ≤ k) is read: accuracies on tasks not yet trained belong to forward transfer.
In the formulas tasks count from 1. Every task has the same weight, whatever its number of test images.

A function returns NaN when an entry that its formula needs is missing; `summarise` turns that into None.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

# Shown next to the numbers, because the same names mean different things in different papers.
DEFINITIONS: dict[str, str] = {
    "FAA": "final average accuracy: mean over all tasks j of a[T,j], the accuracy after the last task",
    "FAIA": "final average incremental accuracy: mean over i = 1..T of AA_i, "
    "the mean accuracy after task i on the i tasks seen",
    "FF": "final forgetting: mean over j < T of (max over k = j..T-1 of a[k,j]) - a[T,j]; "
    "the last row is not in the maximum, so it is negative where the last task improved old ones",
    "BWT": "backward transfer: mean over j < T of a[T,j] - a[j,j]",
    "FWT": "forward transfer: mean over i = 2..T of the accuracy on task i just before training it, "
    "minus that of the untrained network",
}


def average_accuracy(a: Matrix) -> NDArray[np.float64]:
    """AA_i = (1/i) Σ_{j≤i} a[i,j] for every i; NaN where row i is not complete."""
    return np.array([a[i, : i + 1].mean() for i in range(len(a))])


def final_average_accuracy(a: Matrix) -> float:
    """FAA = AA_T = (1/T) Σ_j a[T,j]."""
    return float(a[-1].mean())


def final_average_incremental_accuracy(a: Matrix) -> float:
    """FAIA = (1/T) Σ_i AA_i, which PyCIL prints as "average accuracy"."""
    return float(average_accuracy(a).mean())


def final_forgetting(a: Matrix) -> float:
    """FF = 1/(T−1) Σ_{j<T} ( max_{k∈{j..T−1}} a[k,j] − a[T,j] ), the paper's definition.

    The last row is not in the maximum, so FF can be negative. Mammoth and PyCIL include it: theirs is never
    below 0, nor below FF.
    """
    last = len(a) - 1
    if last < 1:
        return float("nan")
    return float(np.mean([a[j:last, j].max() - a[last, j] for j in range(last)]))


def backward_transfer(a: Matrix) -> float:
    """BWT = 1/(T−1) Σ_{j<T} ( a[T,j] − a[j,j] )."""
    last = len(a) - 1
    if last < 1:
        return float("nan")
    return float(np.mean(a[last, :last] - np.diag(a)[:last]))


def forward_transfer(a_before: NDArray[np.float64], random: NDArray[np.float64]) -> float:
    """FWT = 1/(T−1) Σ_{i≥2} ( a[i−1,i] − r[i] ).

    `a_before[i]` is the accuracy on task i just before training it, `random[i]` that of the untrained network
    on task i; the first entry of both is not used.
    """
    if len(a_before) < 2:
        return float("nan")
    return float(np.mean(np.subtract(a_before[1:], random[1:])))


def tasks_run(a: Matrix) -> int:
    """The number of the last task after which all tasks up to it were measured; 0 for an empty matrix."""
    complete = np.flatnonzero(~np.isnan(average_accuracy(a)))
    return int(complete[-1]) + 1 if len(complete) else 0


def summarise(
    a: Matrix, before: NDArray[np.float64] | None = None, random: NDArray[np.float64] | None = None
) -> dict[str, float | None]:
    """All metrics over the tasks run so far; None where undefined.

    A run stopped after k tasks has its metrics over those k. A joint run knows only the last row, which
    defines FAA but none of the metrics over time; with one task there is neither forgetting nor transfer.
    """
    tasks = tasks_run(a)
    if tasks == 0:
        return dict.fromkeys(DEFINITIONS)
    a = a[:tasks, :tasks]
    values = {
        "FAA": final_average_accuracy(a),
        "FAIA": final_average_incremental_accuracy(a),
        "FF": final_forgetting(a),
        "BWT": backward_transfer(a),
        "FWT": float("nan"),
    }
    if before is not None and random is not None:
        values["FWT"] = forward_transfer(before[:tasks], random[:tasks])
    return {name: None if np.isnan(value) else value for name, value in values.items()}
