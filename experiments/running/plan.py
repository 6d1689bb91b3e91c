"""What a command would do: how many runs, how many are done, and time and disk for the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from experiments.cells import Cell, Expansion, conditions, distinct_runs
from experiments.report.tables import missing, table
from experiments.results.records import inspect_run, read_summary
from experiments.running.estimates import Estimate, Estimates
from utils.status import duration


def unfinished(cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in distinct_runs(cells) if read_summary(cell.path) is None]


def plan(expansions: Sequence[Expansion], estimates: Estimates, at_a_time: int) -> str:
    cells = [cell for expansion in expansions for cell in expansion.cells]
    runs, left = distinct_runs(cells), unfinished(cells)
    lines = [*conditions(expansions), _counts(expansions, {cell.path for cell in left}), "", *missing(expansions)]
    lines += [f"{len(runs)} run{'s' * (len(runs) != 1)} in all, {len(runs) - len(left)} done, {len(left)} to go."]
    lines += [f"damaged: {cell.name}: {reason}" for cell in left if (reason := inspect_run(cell.path)[1])]
    return "\n".join([*lines, *_needs([estimates.of(cell) for cell in left], at_a_time)])


def _counts(expansions: Sequence[Expansion], left: set) -> str:
    """For each table its runs, how many are done, and how many no table above has."""
    seen: set = set()
    rows = []
    for expansion in expansions:
        paths = {cell.path for cell in expansion.cells}
        rows.append([expansion.grid.name, *map(str, (len(paths), len(paths - left), len(paths - seen)))])
        seen |= paths
    return table([["", "runs", "done", "not above"], *rows])


def _needs(estimates: Sequence[Estimate | None], at_a_time: int) -> list[str]:
    known = [estimate for estimate in estimates if estimate is not None and estimate.source is not None]
    lines = []
    if known:
        seconds = sum(estimate.seconds for estimate in known)
        sources = Counter(estimate.source for estimate in known)
        measured = ", ".join(f"{source} for {count} of them" for source, count in sources.items())
        lines.append(
            f"Time: {duration(seconds)} of work, {duration(seconds / at_a_time)} with {at_a_time} at a time "
            f"(measured on this machine: {measured})."
        )
        lines.append(f"Disk: {sum(estimate.bytes for estimate in known) / 1e9:.2g} GB.")
    reasons = Counter(estimate.error if estimate else "not measured" for estimate in estimates if estimate not in known)
    without = "Not included:" if known else "Time and disk are unknown for"
    return lines + [f"{without} {count} run{'s' * (count > 1)} ({reason})." for reason, count in reasons.items()]
