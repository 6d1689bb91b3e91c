"""What figures show of a cell: the means over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.results.collection import Results
from experiments.results.records import MEASURED, METRICS, Record
from experiments.results.statistics import Summary, summarise

Values = list[float | None]


@dataclass(frozen=True)
class Cell:
    """Empty where the runs do not have it. Steps count from the beginning of the run."""

    average_accuracy: list[Summary] = field(default_factory=list)  # AA_t after each task t
    matrix: list[Values] = field(default_factory=list)  # a[i,j] for j ≤ i
    task_starts: list[int] = field(default_factory=list)
    loss: tuple[list[float], Values] = ((), ())  # type: ignore[assignment]  # steps and values
    memory: int | None = None  # bytes of network and all that is kept beside it; 0 if nothing is, None if unknown
    faia: Summary | None = None
    gradients: dict[str, Values] = field(default_factory=dict)  # `at` and what was measured there


def cell_of(results: Results, row: str, column: str) -> Cell | None:
    """None if no run of the cell is finished."""
    found = (results.records.get((row, column, seed)) for seed in results.grid.seeds)
    records = [record for record in found if record is not None]
    return aggregated(records) if records else None


def aggregated(records: Sequence[Record]) -> Cell:
    by_task = _alike([record.get("average_accuracy") or [] for record in records])
    matrices = _alike([record.get("accuracy") or [] for record in records])
    faia = [value for record in records if (value := METRICS["FAIA"](record)) is not None]
    measured = [record for record in records if record.get("diagnostics")]
    return Cell(
        average_accuracy=[summarise([v for v in values if v is not None]) for values in zip(*by_task, strict=True)],
        matrix=[_means(rows) for rows in zip(*matrices, strict=True)],
        task_starts=_starts(records[0].get("task_steps") or []),
        loss=_loss(records),
        memory=next((_memory(record) for record in records if record.keys() >= {"stored_bytes", "parameters"}), None),
        faia=summarise(faia) if faia else None,
        gradients=_gradients([record["diagnostics"] for record in measured]),
    )


def _memory(record: Record) -> int:
    """With the network, since Dynamic ER's grows; at 4 bytes a parameter."""
    return record["stored_bytes"] and 4 * record["parameters"] + record["stored_bytes"]


def _alike(lists: list[list[Any]]) -> list[list[Any]]:
    """Those as long as the first: lists cut differently have no common mean."""
    return [values for values in lists if len(values) == len(lists[0])]


def _means(lists: Sequence[Values]) -> Values:
    """Element by element, over the lists as long as the first; None where one of them has no value."""
    columns = zip(*_alike(list(lists)), strict=True)
    return [None if None in values else summarise(values).mean for values in columns]  # type: ignore[arg-type]


def _starts(steps: list[int]) -> list[int]:
    return [sum(steps[:task]) for task in range(len(steps))]


def _loss(records: Sequence[Record]) -> tuple[list[float], Values]:
    """Steps and values; a step is the middle of those that its value is the mean of."""
    logged = [record for record in records if record.get("loss")]
    steps: list[float] = []
    values: Values = []
    if not logged or any(record["task_steps"] != logged[0]["task_steps"] for record in logged):
        return steps, values
    starts = _starts(logged[0]["task_steps"])
    for task, (start, length) in enumerate(zip(starts, logged[0]["task_steps"], strict=True)):
        means = _means([record["loss"][task] for record in logged])
        values += means
        steps += [start + (part + 0.5) * length / len(means) for part in range(len(means))]
    return steps, values


def _gradients(measured: list[dict[str, Values]]) -> dict[str, Values]:
    alike = [found for found in measured if found["at"] == measured[0]["at"]]
    if not alike:
        return {}
    names = [name for name in MEASURED if all(name in found for found in alike)]
    return {"at": alike[0]["at"], "task": alike[0]["task"]} | {n: _means([f[n] for f in alike]) for n in names}
