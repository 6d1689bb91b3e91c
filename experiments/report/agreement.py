"""Whether a number of ours agrees with the paper's: said only at the paper's own scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

from experiments.grid import Grid, PaperValue
from experiments.results.statistics import Summary

PAPER_PROFILE = "paper"
ERRORS = 2  # this many standard errors of a difference are taken for chance
AGREES, HIGHER, LOWER, UNTOLD = "agrees", "higher", "lower", "untold"
LEGEND = {
    AGREES: ("✓", f"within {ERRORS} standard errors of the difference, √(ours² + paper's²)"),
    HIGHER: ("▲", "higher than the paper by more than that"),
    LOWER: ("▼", "lower than the paper by more than that"),
    UNTOLD: ("·", "no standard error of ours (fewer than 2 runs) or of the paper's to tell by"),
}


@dataclass(frozen=True)
class Agreement:
    difference: float  # ours − the paper's
    verdict: str


def at_paper_scale(grid: Grid) -> bool:
    return grid.profile == PAPER_PROFILE


def agreement(ours: Summary, paper: PaperValue) -> Agreement | None:
    """None without a number of ours."""
    if ours.mean is None:
        return None
    difference = ours.mean - paper.mean
    if ours.se is None or paper.error is None:
        return Agreement(difference, UNTOLD)
    if abs(difference) <= ERRORS * math.hypot(ours.se, paper.error):
        return Agreement(difference, AGREES)
    return Agreement(difference, HIGHER if difference > 0 else LOWER)
