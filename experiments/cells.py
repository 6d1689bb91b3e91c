"""The cells of a grid: each one command line of `main.py`, and the directory of its run."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from experiments.grid import Flags, Grid
from utils.cli.config import Config
from utils.errors import UsageError

FOLDERS = re.compile(r"(?<![\w.])/([^\s'\"]*/)?(?=[\w.])")  # results name no folders of the machine they come from
TAG_LENGTH = 64  # wandb refuses a run with a longer one


@dataclass(frozen=True)
class Cell:
    """One run: its place in the grid, its command line, and the directory that it owns."""

    row: str
    column: str
    seed: int
    argv: tuple[str, ...]
    args: Namespace = field(repr=False, compare=False)
    path: Path

    @property
    def name(self) -> str:
        return ", ".join(part for part in (self.row, self.column, f"seed {self.seed}") if part)

    @property
    def config_hash(self) -> str:
        """The hash in the directory's name, of all that matters to the result, the seed included."""
        return self.path.name.rpartition("-")[2]


@dataclass(frozen=True)
class Expansion:
    """A grid and its cells; rows and columns of a lenient grid that cannot be run here, and why."""

    grid: Grid
    cells: list[Cell]
    unavailable: dict[tuple[str, str], str]


def conditions(expansions: Iterable[Expansion]) -> list[str]:
    """What every output says about the scale of its numbers, each once."""
    return list(dict.fromkeys(e.grid.conditions for e in expansions if e.grid.conditions))


def merged_flags(grid: Grid, row: str, column: str) -> Flags | None:
    """The flags of a cell; None if the row has no cell in that column."""
    spec = grid.rows[row]
    own = spec.columns.get(column, {})
    if own is None:
        return None
    merged = grid.flags | grid.columns[column] | spec.flags | own
    return {name: value for name, value in merged.items() if value is not None}


def to_argv(flags: Flags) -> list[str]:
    argv = []
    for name, value in flags.items():
        if name == "custom_class_order" and isinstance(value, list):
            value = ",".join(map(str, value))
        if isinstance(value, list):
            argv += [f"--{name}", *map(_text, value)]
        else:
            argv.append(f"--{name}={_text(value)}")
    return argv


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def expand(grid: Grid, places: list[str]) -> Expansion:
    """All cells, row by row; `places` are the flags of the command (`--base_path=…`) that every cell gets.

    Everything is parsed here, so that a wrong flag is found before anything runs. Parsing dominates the time, so it
    is done once for all seeds.
    """
    expansion = Expansion(grid, [], {})
    for row in grid.rows:
        for column in grid.columns:
            flags = merged_flags(grid, row, column)
            if flags is None:
                continue
            if column in grid.not_run:
                expansion.unavailable[row, column] = grid.not_run[column]
                continue
            try:
                expansion.cells.extend(_seeded_cells(grid, row, column, [*to_argv(flags), *places]))
            except UsageError as error:
                if not grid.lenient:
                    where = f"row {row!r}" + (f", column {column!r}" if column else "")
                    raise UsageError(f"{grid.name}: {where}: {error}") from None
                expansion.unavailable[row, column] = FOLDERS.sub("", str(error).partition("; ")[0])
    return expansion


def _seeded_cells(grid: Grid, row: str, column: str, argv: list[str]) -> list[Cell]:
    from utils.run.directory import RunDirectory
    from utils.run.identity import changed

    cells = []
    for seed in grid.seeds:
        args = changed(_parsed(tuple(argv)), seed=seed)
        cells.append(Cell(row, column, seed, (*argv, f"--seed={seed}"), args, RunDirectory(args).path))
    return cells


@cache
def _parsed(argv: tuple[str, ...]) -> Config:
    """Several tables have the same cells."""
    from utils.cli.parse import parse_args

    return parse_args([*argv, "--seed=0"])


def parsed_cell(row: str, column: str, seed: int, argv: tuple[str, ...]) -> Cell:
    """A cell from its stored command line, parsed on the machine that runs it."""
    from utils.cli.parse import parse_args
    from utils.run.directory import RunDirectory

    args = parse_args(list(argv))
    return Cell(row, column, seed, argv, args, RunDirectory(args).path)


def distinct_runs(cells: Iterable[Cell]) -> list[Cell]:
    """One cell for each run directory, the first that names it: what several cells share is run once."""
    by_path: dict[Path, Cell] = {}
    for cell in cells:
        by_path.setdefault(cell.path, cell)
    return list(by_path.values())


def with_wandb_labels(expansions: Iterable[Expansion]) -> list[Cell]:
    """All cells; those that log to wandb with group and tags, so that a dashboard filters like a table.

    The group is the first table that needs the run, with the dataset; the tags are all tables, rows and columns
    that show it, and the profile. A grid's own group is kept, and its own tags are added to these.
    """
    cells = [(expansion.grid, cell) for expansion in expansions for cell in expansion.cells]
    groups: dict[Path, str] = {}
    tags: dict[Path, dict[str, None]] = {}
    for grid, cell in cells:
        groups.setdefault(cell.path, cell.args.wandb_group or f"{grid.name} {cell.args.dataset}")
        names = [*cell.args.wandb_tags, grid.name, grid.profile, cell.row, cell.column, *cell.column.split(", ")]
        tags.setdefault(cell.path, {}).update({wandb_tag(name): None for name in names if name})
    return [
        cell if cell.args.nowand else _with_labels(cell, groups[cell.path], list(tags[cell.path])) for _, cell in cells
    ]


def wandb_tag(name: str) -> str:
    """The tag of a name, with a leading space if it would be taken for a flag."""
    return (f" {name}" if name.startswith("-") else name)[:TAG_LENGTH]


def _with_labels(cell: Cell, group: str, tags: list[str]) -> Cell:
    return replace(cell, argv=(*cell.argv, f"--wandb_group={group}", "--wandb_tags", *tags))
