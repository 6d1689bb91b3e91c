"""What the log of a run tells beyond its summary, thinned out: the loss and the errors of gradients over the steps."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

LOSS_POINTS = 120  # of a run
MEASUREMENTS = 120
DIGITS = 4  # significant ones: a curve shows fewer
DIAGNOSTICS = ("batch", "buffer", "calibrated")
MEASURED = [f"{estimate}_{kind}" for kind in ("error", "cosine") for estimate in DIAGNOSTICS] + ["alpha_star"]


def read_curves(log: Path) -> dict[str, Any]:
    """`task_steps`: the steps of each task. `loss`: of each task the means over equal parts of it. `diagnostics`: each
    value by measurement, with `at`, the run's step. What the log does not have is left out.
    """
    losses: dict[int, list[float | None]] = {}
    measured: list[dict[str, Any]] = []
    for event in _events(log):
        if event.get("event") == "train" and "loss" in event:
            losses.setdefault(event["task"], []).extend(event["loss"])
        elif event.get("event") == "diagnostics":
            before = sum(len(values) for task, values in losses.items() if task < event["task"])
            measured.append(event | {"at": before + event["step"]})
    curves: dict[str, Any] = {}
    if losses:
        parts = max(1, LOSS_POINTS // len(losses))
        curves["task_steps"] = [len(values) for values in losses.values()]
        curves["loss"] = [_thinned(values, parts) for values in losses.values()]
    if measured:
        curves["diagnostics"] = _measurements(measured)
    return curves


def _events(log: Path) -> Iterator[dict[str, Any]]:
    """The log's lines; one that is damaged takes no other with it."""
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _thinned(values: list[float | None], parts: int) -> list[float | None]:
    """Means of at most so many equal parts; None where no step has a value."""
    parts = min(parts, len(values))
    edges = [len(values) * part // parts for part in range(parts + 1)]
    pieces = [[v for v in values[a:b] if v is not None] for a, b in pairwise(edges)]
    return [_short(math.fsum(piece) / len(piece)) if piece else None for piece in pieces]


def _measurements(events: list[dict[str, Any]]) -> dict[str, list[Any]]:
    kept = events[:: -(-len(events) // MEASUREMENTS)]
    found: dict[str, list[Any]] = {name: [event[name] for event in kept] for name in ("at", "task")}
    for name in MEASURED:
        values = [event.get(name) for event in kept]
        if any(value is not None for value in values):
            found[name] = [None if value is None else _short(value) for value in values]
    return found


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
