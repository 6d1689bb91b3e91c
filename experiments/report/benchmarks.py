"""Tables put together by benchmark, so that what several of them show is judged and drawn once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from experiments.results.collection import Results, column_flags


def benchmarks(results: Sequence[Results]) -> list[tuple[Results, Results]]:
    """Groups of tables that agree wherever they share a cell: the first table, and all of the group as one."""
    groups: list[tuple[Results, Results]] = []
    for result in results:
        for number, (first, together) in enumerate(groups):
            if _agree(together, result):
                groups[number] = first, _joined(together, result)
                break
        else:
            groups.append((result, result))
    return groups


def _agree(a: Results, b: Results) -> bool:
    """The same scale, the same pairs, the same columns, and the same run in every cell that both have."""
    rows, columns = a.grid.rows.keys() & b.grid.rows.keys(), a.grid.columns.keys() & b.grid.columns.keys()
    return (
        (a.grid.conditions, a.grid.seeds) == (b.grid.conditions, b.grid.seeds)
        and all(a.grid.rows[row].against == b.grid.rows[row].against for row in rows)
        and all(column_flags(a.grid, column) == column_flags(b.grid, column) for column in columns)
        and all(a.records[place] is b.records[place] for place in a.records.keys() & b.records.keys())
    )


def _joined(a: Results, b: Results) -> Results:
    columns = {column: column_flags(grid, column) for grid in (b.grid, a.grid) for column in grid.columns}
    grid = replace(
        a.grid,
        flags={},
        columns={column: columns[column] for column in [*a.grid.columns, *b.grid.columns]},
        rows=a.grid.rows | b.grid.rows,
        metrics=list(dict.fromkeys([*a.grid.metrics, *b.grid.metrics])),
    )
    expansion = replace(a.expansion, grid=grid, unavailable=a.expansion.unavailable | b.expansion.unavailable)
    return Results(expansion, a.records | b.records)
