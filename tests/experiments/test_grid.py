"""Grids: how flags merge, which cells share a run, and errors of one line that name the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from experiment_helpers import DIGITS, expanded, write_grid

from experiments.cells import distinct_runs, expand, merged_flags, to_argv
from experiments.grid import parse_seeds, read_grid, selection
from utils.cli.parse import parse_args
from utils.errors import UsageError
from utils.run.directory import RunDirectory

TWO_BUFFERS = {
    "title": "Two buffers",
    "flags": {"dataset": "seq-digits", "n_epochs": 1, "lr": 0.1},
    "columns": {50: {"buffer_size": 50, "lr": 0.2}, 100: {"buffer_size": 100}},
    "rows": {
        "SGD": {"model": "sgd", "buffer_size": None},
        "ER": {"model": "er", "lr": 0.3},
        "ER, more": {"model": "er", "columns": {50: {"buffer_size": 97, "lr": 0.4}, 100: None}, "against": "ER"},
    },
    "seeds": 2,
}


def test_flags_merge_from_the_general_to_the_particular(tmp_path: Path) -> None:
    grid = read_grid(write_grid(tmp_path / "grid.yaml", **TWO_BUFFERS))
    common = {"dataset": "seq-digits", "n_epochs": 1}
    assert merged_flags(grid, "SGD", "50") == common | {"model": "sgd", "lr": 0.2}  # null took the buffer away
    assert merged_flags(grid, "SGD", "100") == common | {"model": "sgd", "lr": 0.1}
    assert merged_flags(grid, "ER", "50") == common | {"model": "er", "lr": 0.3, "buffer_size": 50}
    assert merged_flags(grid, "ER, more", "50") == common | {"model": "er", "lr": 0.4, "buffer_size": 97}
    assert merged_flags(grid, "ER, more", "100") is None
    assert (grid.title, grid.seeds, grid.rows["ER, more"].against) == ("Two buffers", (0, 1), "ER")
    assert grid.metrics == ["FAIA", "FAA", "FF"]


def test_a_cell_is_the_run_of_its_command_line(tmp_path: Path) -> None:
    cells = expanded(tmp_path, **TWO_BUFFERS).cells
    assert [(c.row, c.column, c.seed) for c in cells] == [
        (row, column, seed)
        for row, column in [("SGD", "50"), ("SGD", "100"), ("ER", "50"), ("ER", "100"), ("ER, more", "50")]
        for seed in (0, 1)
    ]
    for cell in cells:
        assert cell.path == RunDirectory(parse_args(list(cell.argv))).path
    assert cells[-1].name == "ER, more, 50, seed 1"


def test_cells_with_the_same_directory_are_one_run(tmp_path: Path) -> None:
    rows = {"SGD": {"model": "sgd", "buffer_size": None}, "ER": {"model": "er"}, "default": {"model": "er", "lr": 0.1}}
    columns = {"a": {"buffer_size": 50}, "b": {"buffer_size": 60}}
    cells = expanded(tmp_path, flags={"n_epochs": 1}, columns=columns, rows=rows).cells
    assert len(cells) == 6
    assert [(c.row, c.column) for c in distinct_runs(cells)] == [("SGD", "a"), ("ER", "a"), ("ER", "b")]


def test_values_become_flags() -> None:
    flags = {"drop_last": True, "lr": "1e-3", "lr_milestones": [0.7, 0.9], "notes": "a b", "custom_class_order": [1, 0]}
    assert to_argv(flags) == [
        "--drop_last=1",
        "--lr=1e-3",
        "--lr_milestones",
        "0.7",
        "0.9",
        "--notes=a b",
        "--custom_class_order=1,0",
    ]


def test_without_columns_a_cell_is_named_by_row_and_seed(tmp_path: Path) -> None:
    (cell,) = expanded(tmp_path, flags=DIGITS, rows={"ER": {"model": "er"}}, seeds=[7]).cells
    assert (cell.column, cell.name) == ("", "ER, seed 7")


def test_seeds() -> None:
    assert parse_seeds(3) == (0, 1, 2) and parse_seeds([5, 2]) == (5, 2) and parse_seeds([2**63 - 1]) == (2**63 - 1,)


def test_a_part_of_a_grid(tmp_path: Path) -> None:
    columns = {"C10, 50": {"buffer_size": 50}, "C100, 50": {"buffer_size": 51}, "C100, 60": {"buffer_size": 60}}
    rows = {"SGD": {"model": "sgd", "buffer_size": None}, "ER": {"model": "er"}}
    grid = read_grid(write_grid(tmp_path / "grid.yaml", columns=columns, rows=rows))
    assert list(selection([grid], ["ER"], ["C100"])[0].columns) == ["C100, 50", "C100, 60"]
    assert list(selection([grid], ["ER"], None)[0].rows) == ["ER"]
    assert list(selection([grid], None, ["50"])[0].columns) == ["C10, 50", "C100, 50"]
    with pytest.raises(UsageError, match="--rows: grid has no row 'ERR'; did you mean 'ER'"):
        selection([grid], ["ERR"], None)
    with pytest.raises(UsageError, match="--columns: grid has no column 'C1000'"):
        selection([grid], None, ["C1000"])
    with pytest.raises(UsageError, match="valid are 50, 60, C10, 'C10, 50', C100, 'C100, 50', 'C100, 60'"):
        selection([grid], None, ["xyz"])


def test_a_part_of_several_grids(tmp_path: Path) -> None:
    """A name that only some of them have leaves those."""
    few = read_grid(write_grid(tmp_path / "few.yaml", columns={"C10": {}}, rows={"ER": {}, "SGD": {}}))
    many = read_grid(write_grid(tmp_path / "many.yaml", columns={"C10": {}, "C100": {}}, rows={"ER": {}, "DER": {}}))

    def left(rows: list[str] | None, columns: list[str] | None) -> dict[str, tuple[list[str], list[str]]]:
        return {grid.name: (list(grid.rows), list(grid.columns)) for grid in selection([few, many], rows, columns)}

    assert left(None, ["C100"]) == {"many": (["ER", "DER"], ["C100"])}
    assert left(["SGD", "DER"], ["C10"]) == {"few": (["SGD"], ["C10"]), "many": (["DER"], ["C10"])}
    with pytest.raises(UsageError, match="--rows: none of the tables has a row 'DGC'"):
        selection([few, many], ["DGC"], None)
    with pytest.raises(UsageError, match="no table has both such a row and such a column"):
        selection([few, many], ["SGD"], ["C100"])


ER: dict[str, Any] = {"ER": {"model": "er", "buffer_size": 50}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"row": ER}, ["unknown key 'row'", "'rows'"]),
        ({"rows": {}}, ["`rows` is missing"]),
        ({"rows": ["ER"]}, ["rows", "['ER']", "mapping"]),
        ({"rows": {"ER": "er"}}, ["row 'ER'", "'er'"]),
        ({"rows": ER, "flags": {"seed": 1}}, ["flags: seed", "seeds"]),
        ({"rows": {"ER": {"model": "er", "base_path": "x"}}}, ["row 'ER'", "--base_path to the command"]),
        ({"rows": {"ER": {"model": "er", "lr": {"a": 1}}}}, ["row 'ER'", "lr"]),
        ({"rows": {"ER": {"model": "er", "columns": {"5": {}}}}}, ["row 'ER'", "unknown column '5'"]),
        ({"rows": {"ER": {"model": "er", "against": "EE"}}}, ["row 'ER'", "against", "'EE'", "'ER'"]),
        ({"rows": ER, "seeds": 0}, ["seeds", "0"]),
        ({"rows": ER, "seeds": [1, 1]}, ["seeds", "[1, 1]", "distinct"]),
        ({"rows": ER, "seeds": "all"}, ["seeds", "'all'"]),
        ({"rows": ER, "seeds": 10**23}, ["seeds: 1000", "at most 10000"]),
        ({"rows": ER, "seeds": [2**63]}, ["seeds: [9223372036854775808]", "each at most 9223372036854775807"]),
        ({"rows": ER, "metrics": ["FAIA", "FIA"]}, ["metrics", "'FIA'", "'FAIA'"]),
        ({"rows": ER, "metrics": "FAIA"}, ["metrics", "list"]),
        ({"rows": ER, "metrics": ["FAIA", [1]]}, ["metrics", "unknown metric [1]"]),
        ({"rows": ER, "flags": {"help": []}}, ["flags: help does not belong in a grid", "main.py --help"]),
        ({"rows": {"ER": {"model": "er", "list": []}}}, ["row 'ER': list does not", "main.py --list"]),
        ({"rows": ER, "flags": {"lr_milestones": [1, "--list"]}}, ["flags: lr_milestones: [1, '--list'] has a flag"]),
        ({"rows": {"E": {"model": "er"}}}, ["row 'E'", "--buffer_size"]),
        ({"rows": {"E": {"model": "err", "buffer_size": 5}}}, ["row 'E'", "unknown model 'err'", "'er'"]),
        ({"rows": ER, "columns": {"c": {"bufer_size": 5}}}, ["row 'ER', column 'c'", "--bufer_size", "--buffer_size"]),
        ({"rows": ER, "flags": {"lr": "fast"}}, ["row 'ER'", "--lr", "'fast'"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, content: dict[str, Any], words: list[str]) -> None:
    path = write_grid(tmp_path / "grid.yaml", **content)
    with pytest.raises(UsageError) as caught:
        expand(read_grid(path), [])
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in ["grid", *words]), message


@pytest.mark.parametrize(
    "content", ["a: " + "[" * 3000, "a: " + "{b: " * 3000, "seeds: " + "1" * 5000, "a: 2024-13-01"]
)
def test_a_grid_that_no_parser_takes_is_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(content)
    with pytest.raises(UsageError, match=r"grid\.yaml (cannot be read|is not valid YAML)") as caught:
        read_grid(tmp_path / "grid.yaml")
    assert "\n" not in str(caught.value)
