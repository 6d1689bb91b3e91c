"""A grid: rows × columns × seeds, each cell one command line of `main.py` and the directory of its run.

    title: Replay and calibration
    flags: {dataset: seq-cifar100, dataset_config: small}        # of every cell
    columns: {"500": {buffer_size: 500}, "2000": {buffer_size: 2000}}
    rows:
      ER: {model: er}
      SGD: {model: sgd, buffer_size: null}                       # null takes a flag away
      DGC-ER: {model: dgc_er, against: ER}                       # the pair that is compared seed by seed
      ER, equal memory: {model: er, columns: {"500": {buffer_size: 974}, "2000": null}}   # null: no such cell
    seeds: 3                                                     # 0, 1, 2; or a list
    metrics: [FAIA, FF]

Flags merge in this order, later ones winning: `flags`, the column's, the row's, the row's own for that column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from utils.cli.yaml_io import read_yaml
from utils.errors import UsageError, nearest

Flags = dict[str, Any]
KEYS = ("title", "flags", "columns", "rows", "seeds", "metrics")
DEFAULT_METRICS = ["FAIA", "FAA", "FF"]
ONLY_COLUMN = ""
MOST_SEEDS = 10_000  # a larger number was meant as a seed, not as a number of seeds
LAST_SEED = 2**63 - 1  # as for `main.py --seed`
# Flags that belong to the command that runs a grid, not to a cell of it.
OF_THE_COMMAND = {
    "seed": "use the grid's `seeds`",
    "base_path": "give --base_path to the command",
    "results_path": "give --results_path to the command",
    "device": "give --devices to the command",
    "resume": "a grid always resumes what is there",
    "overwrite": "delete the run's directory instead",
    "help": "`python main.py --help` shows the flags",
    "list": "`python main.py --list` shows the names",
}


@dataclass(frozen=True)
class Row:
    """Flags of a row, those of some of its columns (None: the row has no such cell), and the row it is paired with."""

    flags: Flags
    columns: dict[str, Flags | None] = field(default_factory=dict)
    against: str | None = None


@dataclass(frozen=True)
class PaperValue:
    """A number of the paper, as printed; what it calls its standard error is None where it prints none."""

    text: str
    mean: float
    error: float | None


@dataclass(frozen=True)
class Grid:
    name: str
    title: str
    flags: Flags
    columns: dict[str, Flags]
    rows: dict[str, Row]
    seeds: tuple[int, ...]
    metrics: list[str]
    # For the paper's tables: whether a cell that cannot be run is shown as such instead of being an error; the place in
    # the paper; the scale, by name and in words; notes; the paper's numbers (metric → row → column); the table's names
    # for columns that stand in for others; columns that run only on request, and why.
    lenient: bool = False
    place: str = ""
    profile: str = ""
    conditions: str = ""
    notes: list[str] = field(default_factory=list)
    paper: dict[str, dict[str, dict[str, PaperValue]]] = field(default_factory=dict)
    stands_for: dict[str, str] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)


def read_grid(path: Path) -> Grid:
    """The grid in a YAML file; whatever is wrong with it is one line that names the file and the place."""
    content = read_yaml(path)
    try:
        return parse_grid(path.stem, content)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def parse_grid(name: str, content: Mapping[Any, Any], **of_a_table: Any) -> Grid:
    for key in content:
        if key not in KEYS:
            raise UsageError(f"unknown key {key!r}{nearest(str(key), KEYS)}")
    columns = {
        column: _flags(flags, f"column {column!r}")
        for column, flags in _mapping(content.get("columns"), "columns").items()
    }
    rows = {row: _row(values, row, columns) for row, values in _mapping(content.get("rows"), "rows").items()}
    if not rows:
        raise UsageError("`rows` is missing or empty; a row is a name with its flags, such as `ER: {model: er}`")
    for row, spec in rows.items():
        if spec.against is not None and spec.against not in rows:
            raise UsageError(f"row {row!r}: against: unknown row {spec.against!r}{nearest(spec.against, rows)}")
    return Grid(
        name=name,
        title=str(content.get("title") or name),
        flags=_flags(content.get("flags"), "flags"),
        columns=columns or {ONLY_COLUMN: {}},
        rows=rows,
        seeds=parse_seeds(content.get("seeds", 1)),
        metrics=parse_metrics(content.get("metrics", DEFAULT_METRICS)),
        **of_a_table,
    )


def parse_seeds(value: Any) -> tuple[int, ...]:
    """`3` is 0, 1, 2; a list is itself."""
    seeds = list(range(value)) if _is_whole(value) and value <= MOST_SEEDS else value
    listed = isinstance(seeds, list) and all(_is_whole(seed) and 0 <= seed <= LAST_SEED for seed in seeds)
    if not listed or not seeds or len(set(seeds)) < len(seeds):
        number = f"is no number of seeds: it must be at least 1 and at most {MOST_SEEDS}"
        wrong = number if _is_whole(value) else f"is no list of distinct seeds, each at most {LAST_SEED}"
        raise UsageError(f"seeds: {value!r} {wrong}")
    return tuple(seeds)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def parse_metrics(value: Any) -> list[str]:
    from experiments.results.records import METRICS

    if not isinstance(value, list) or not value:
        raise UsageError(f"metrics: {value!r} is not a list, such as [{', '.join(DEFAULT_METRICS)}]")
    for name in value:
        if not isinstance(name, str) or name not in METRICS:
            raise UsageError(f"metrics: unknown metric {name!r}{nearest(str(name), METRICS)}")
    return value


def _mapping(value: Any, where: str) -> dict[str, Any]:
    """A mapping with its keys as text: YAML reads the column 500 as a number."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: {value!r} is not a mapping of `name: value`")
    named = {str(key): item for key, item in value.items()}
    if len(named) < len(value):
        raise UsageError(f"{where}: a name is given twice, as a number and as text")
    return named


def _row(values: Any, row: str, columns: Iterable[str]) -> Row:
    flags = _mapping(values, f"row {row!r}")
    own = _mapping(flags.pop("columns", None), f"row {row!r}: columns")
    against = flags.pop("against", None)
    for column in own:
        if column not in columns:
            raise UsageError(f"row {row!r}: columns: unknown column {column!r}{nearest(column, columns)}")
    by_column = {
        column: None if value is None else _flags(value, f"row {row!r}, column {column!r}")
        for column, value in own.items()
    }
    return Row(_flags(flags, f"row {row!r}"), by_column, None if against is None else str(against))


def _flags(value: Any, where: str) -> Flags:
    flags = _mapping(value, where)
    for name, item in flags.items():
        if name in OF_THE_COMMAND:
            raise UsageError(f"{where}: {name} does not belong in a grid; {OF_THE_COMMAND[name]}")
        scalars = item if isinstance(item, list) else [item]
        if any(isinstance(scalar, list | Mapping) for scalar in scalars):
            raise UsageError(f"{where}: {name}: {item!r} is neither a value nor a list of values")
        # `main.py` would take it for a flag; a single value is safe, because it stands behind a `=`.
        if isinstance(item, list) and any(isinstance(scalar, str) and scalar.startswith("-") for scalar in item):
            raise UsageError(f"{where}: {name}: {item!r} has a flag in it; a flag stands by itself, as `name: value`")
    return flags


def selection(grids: Sequence[Grid], rows: list[str] | None, columns: list[str] | None) -> list[Grid]:
    """Only these rows, by name, and these columns, by name or by a part of it: `S-CIFAR100` of `S-CIFAR100, 500`.

    A name need only be in one of the grids; grids with nothing left are dropped.
    """
    _check_names("row", rows, grids, {row for grid in grids for row in grid.rows})
    _check_names("column", columns, grids, {part for grid in grids for c in grid.columns for part in _parts(grid, c)})
    narrowed = [
        replace(
            grid,
            rows={row: spec for row, spec in grid.rows.items() if not rows or row in rows},
            columns={c: flags for c, flags in grid.columns.items() if not columns or _parts(grid, c) & set(columns)},
            not_run={} if columns else grid.not_run,
        )
        for grid in grids
    ]
    left = [grid for grid in narrowed if grid.rows and grid.columns]
    if not left:
        raise UsageError("--rows and --columns: no table has both such a row and such a column; leave one of them out")
    return left


def _parts(grid: Grid, column: str) -> set[str]:
    """The names by which a column can be chosen, whatever stands in for it."""
    own = grid.stands_for.get(column, column)
    return {column, *column.split(", "), own, *own.split(", ")}


def _check_names(kind: str, names: list[str] | None, grids: Sequence[Grid], known: set[str]) -> None:
    where = f"{grids[0].name} has no" if len(grids) == 1 else "none of the tables has a"
    for name in names or []:
        if name not in known:
            raise UsageError(f"--{kind}s: {where} {kind} {name!r}{nearest(name, sorted(known))}")
