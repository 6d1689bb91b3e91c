"""How the runs of a grid are filed in wandb, so that a dashboard filters like a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from experiments.cells import Cell, Expansion

TAG_LENGTH = 64  # wandb refuses a run with a longer one


def labelled(expansions: Iterable[Expansion]) -> list[Cell]:
    """All cells; those that log to wandb with group and tags, which don't change the directory of a run.

    The group is the first table that needs the run, with the dataset; the tags are all tables, rows and columns
    that show it, and the profile. What a grid says itself stays: its group, and its tags beside these.
    """
    cells = [(expansion.grid, cell) for expansion in expansions for cell in expansion.cells]
    groups: dict[Path, str] = {}
    tags: dict[Path, dict[str, None]] = {}
    for grid, cell in cells:
        groups.setdefault(cell.path, cell.args.wandb_group or f"{grid.name} {cell.args.dataset}")
        names = [*cell.args.wandb_tags, grid.name, grid.profile, cell.row, cell.column, *cell.column.split(", ")]
        tags.setdefault(cell.path, {}).update({_tag(name): None for name in names if name})
    return [
        cell if cell.args.nowand else _with_labels(cell, groups[cell.path], list(tags[cell.path])) for _, cell in cells
    ]


def _tag(name: str) -> str:
    """Behind a space if it would be taken for a flag."""
    return (f" {name}" if name.startswith("-") else name)[:TAG_LENGTH]


def _with_labels(cell: Cell, group: str, tags: list[str]) -> Cell:
    return replace(cell, argv=(*cell.argv, f"--wandb_group={group}", "--wandb_tags", *tags))
