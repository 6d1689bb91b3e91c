"""Every table and figure, the paper's and ours, at the smallest scale: from nothing to numbers, as a user would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

from experiments.cells import merged_flags
from experiments.tables import load_table, table_names

pytestmark = pytest.mark.slow

SCALE = ["all", "--profile", "smoke", "--seeds", "1"]


def reproduce(*arguments: str, folder: Path) -> str:
    command = [sys.executable, ROOT / "reproduce.py", *arguments, "--base_path", folder]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=3000)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("smoke")
    said = reproduce("run", *SCALE, "--jobs", "2", "--devices", "cpu", folder=folder)
    assert "failed" not in said
    reproduce("table", *SCALE, "--output", str(folder / "out"), folder=folder)
    return json.loads((folder / "out" / "results.json").read_text())


def test_every_cell_that_can_be_run_has_all_its_seeds(results: dict[str, Any]) -> None:
    done: dict[tuple[str, str, str], list[int]] = {}
    for run in results["runs"]:
        for table, row, column in run["cells"]:
            done.setdefault((table, row, column), []).append(run["seed"])
    expected = {
        (grid.name, row, column)
        for grid in (load_table(name, "smoke") for name in table_names())
        for row in grid.rows
        for column in grid.columns
        if merged_flags(grid, row, column) is not None
    }
    unavailable = {(t["name"], row, column) for t in results["tables"] for row, column, _ in t["unavailable"]}
    assert done.keys() == expected - unavailable
    assert all(seeds == [0] for seeds in done.values())


def test_numbers_are_those_of_training(results: dict[str, Any]) -> None:
    """Not of a machinery that runs and learns nothing: joint training beats replay, replay beats fine-tuning."""
    final: dict[str, list[float]] = {}
    for run in results["runs"]:
        for table, row, _ in run["cells"]:
            if table == "faa":
                final.setdefault(row, []).append(run["class_il"]["FAA"])
    mean = {row: sum(values) / len(values) for row, values in final.items()}
    assert mean["SGD"] < 25 < mean["ER"] < mean["Joint"]
    assert mean["DGC-ER"] > 25
