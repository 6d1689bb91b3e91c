"""The grids whose results docs/results shows: each cell is a valid command, and a ladder's rung is one change."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import ROOT

from datasets.seq_embeddings import EMBEDDED
from experiments.cells import distinct_runs, expand
from experiments.grid import Grid, read_grid, selection
from experiments.tables import load_table
from utils.run.identity import relevant_config

GRIDS = {path.stem: path for path in sorted((ROOT / "experiments" / "grids").glob("*.yaml"))}
CALIBRATION = {"model", "dgc_estimator", "dgc_alpha", "dgc_m", "dgc_view", "dgc_stage", "dgc_current", "dgc_params"}
# What a row changes against its pair: a method is calibrated, or one flag differs.
CHANGES = [CALIBRATION, {"dgc_stage"}, {"buffer_fill"}, {"replay_weight"}, {"body_lr_scale"}, {"buffer_size"}]


def grid(name: str) -> Grid:
    return replace(read_grid(GRIDS[name]), seeds=(0,))


@pytest.mark.slow
@pytest.mark.parametrize("name", GRIDS)
def test_every_committed_grid_can_be_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where a file stands for the one that embeddings_500 is about, which is made by hand
    (tmp_path / "data").mkdir()
    shutil.copy(EMBEDDED, tmp_path / "data" / "cifar100_500.npz")
    found = expand(grid(name), [])
    assert len(found.cells) == len(found.grid.rows) * len(found.grid.columns) and not found.unavailable
    assert len(distinct_runs(found.cells)) >= len(found.grid.rows)  # no row repeats another


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ladder", "ladder_methods", "body_rate"])
def test_a_rung_is_one_change_to_the_row_that_it_is_paired_with(name: str) -> None:
    found = expand(grid(name), [])
    column = next(iter(found.grid.columns))
    cells = {cell.row: relevant_config(cell.args) for cell in found.cells if cell.column == column}
    for row, spec in found.grid.rows.items():
        if spec.against is not None:
            own, base = cells[row], cells[spec.against]
            changed = {flag for flag in own | base if own.get(flag) != base.get(flag)}
            assert changed and any(changed <= allowed for allowed in CHANGES), (row, changed)


def test_the_ladders_share_their_runs_with_the_main_table() -> None:
    rows = ["ER", "ER, filled at task ends", "DGC-DER++", "X-DER", "DGC-X-DER", "DGC-Dynamic ER"]
    (table,) = selection([replace(load_table("faia", "small"), seeds=(0,))], rows, ["S-CIFAR100, 500"])
    shown = {cell.path for cell in expand(table, []).cells}
    shared = {cell.row for name in ("ladder", "ladder_methods") for cell in expand(grid(name), []).cells
              if cell.path in shown}  # fmt: skip
    assert shared == {"ER, as in Mammoth", "filled at task ends", "DER++, sampled, α = 0.001", "X-DER",
                      "X-DER, sampled, α = 0.001", "Dynamic ER, sampled, α = 0.001"}  # fmt: skip


def test_equal_memory_is_that_of_the_calibration() -> None:
    ladder, profile = grid("ladder"), load_table("equal_memory", "small")
    row = "ER, filled at task ends, equal memory"
    for column in ("500", "2000"):
        own, other = ladder.rows["equal memory in images"].columns, profile.rows[row].columns
        assert own[column] == other[f"S-CIFAR100, {column}"]
