"""What figures show of a cell: the means over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.results.collection import Results
from experiments.results.records import MEASUREMENTS_OF, METRICS, Record
from experiments.results.statistics import Summary, summarise

Values = list[float | None]


@dataclass(frozen=True)
class CellMeans:
    """Empty where the runs do not have it."""

    average_accuracy: list[Summary] = field(default_factory=list)  # AA_t after each task t
    matrix: list[Values] = field(default_factory=list)  # a[i,j] for j ≤ i
    loss: dict[str, Values] = field(default_factory=dict)  # `at`, steps of the run, and what was measured there
    memory: int | None = None  # bytes of network and all that is kept beside it; 0 if nothing is, None if unknown
    faia: Summary | None = None
    gradients: dict[str, Values] = field(default_factory=dict)  # likewise


def cell_of(results: Results, row: str, column: str) -> CellMeans | None:
    """None if no run of the cell is finished."""
    found = (results.records.get((row, column, seed)) for seed in results.grid.seeds)
    records = [record for record in found if record is not None]
    return aggregated(records) if records else None


def aggregated(records: Sequence[Record]) -> CellMeans:
    by_task = _alike([record.get("average_accuracy") or [] for record in records])
    matrices = _alike([record.get("accuracy") or [] for record in records])
    faia = [value for record in records if (value := METRICS["FAIA"](record)) is not None]
    return CellMeans(
        average_accuracy=[summarise([v for v in values if v is not None]) for values in zip(*by_task, strict=True)],
        matrix=[_means(rows) for rows in zip(*matrices, strict=True)],
        loss=_measured(records, "whole_loss"),
        memory=next((_memory(record) for record in records if record.keys() >= {"stored_bytes", "parameters"}), None),
        faia=summarise(faia) if faia else None,
        gradients=_measured(records, "diagnostics"),
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


def _measured(records: Sequence[Record], event: str) -> dict[str, Values]:
    found = [record[event] for record in records if record.get(event)]
    alike = [measured for measured in found if measured["at"] == found[0]["at"]]
    if not alike:
        return {}
    names = [name for name in MEASUREMENTS_OF[event] if all(name in measured for measured in alike)]
    return {"at": alike[0]["at"], "task": alike[0]["task"]} | {n: _means([m[n] for m in alike]) for n in names}
