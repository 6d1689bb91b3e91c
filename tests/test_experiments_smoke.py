"""Every table and figure of the paper, and ours, run as a user would: at the smallest scale, from nothing to numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

SCALE = ["all", "--profile", "smoke"]


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
    done: dict[tuple[str, ...], list[int]] = {}
    for run in results["runs"]:
        for cell in run["cells"]:
            done.setdefault(tuple(cell), []).append(run["seed"])
    for table in results["tables"]:
        unavailable = {(row, column) for row, column, _ in table["unavailable"]}
        for row in table["rows"]:
            found = [sorted(done.get((table["name"], row, column), [])) for column in table["columns"]]
            complete = [seeds == [0, 1] or (row, c) in unavailable for c, seeds in zip(table["columns"], found)]
            # `policy` and `equal_memory` have rows of some columns only; of such a column there is no run at all.
            assert all(ok or seeds == [] for ok, seeds in zip(complete, found)) and any(complete), (table["name"], row)


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
