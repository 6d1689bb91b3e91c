"""What the tests of grids share: a grid in a file, runs that were never trained, and real ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from helpers import RESULT_FILES

from experiments import cli
from experiments.cells import Cell, Expansion, expand
from experiments.grid import read_grid
from experiments.results.records import read_summary
from experiments.running.cell_files import log_file
from main import initialize
from utils.cli.parse import parse_args
from utils.metrics import summarise
from utils.run.directory import RunDirectory
from utils.run.write_results import write_accuracy, write_json, write_summary
from utils.training import train

DIGITS = {"dataset": "seq-digits", "n_epochs": 1, "buffer_size": 50}


def write_grid(path: Path, **content: Any) -> Path:
    path.write_text(yaml.safe_dump(content, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return path


def expanded(tmp_path: Path, **content: Any) -> Expansion:
    grid = read_grid(write_grid(tmp_path / "grid.yaml", **content))
    return expand(grid, [f"--base_path={tmp_path / 'data'}"])


def finish(cell: Cell, first: float, last: tuple[float, float], seconds: float = 10.0, **environment: Any) -> None:
    """Write a run of two tasks with these accuracies: a[1,1]; a[2,1] and a[2,2]. Task-IL is 100 throughout."""
    matrix = np.array([[first, np.nan], last])
    cell.path.mkdir(parents=True)
    perfect = np.where(np.isnan(matrix), np.nan, 100.0)
    write_accuracy(cell.path / "accuracy.csv", matrix, perfect)
    tasks = [{"task": task, "train_seconds": seconds * task, "eval_seconds": 1.0} for task in (1, 2)]
    timing = {"finished": "2024-05-01T00:00:00+00:00", "tasks": tasks, "steps_per_second": 2.0}
    write_json(cell.path / "timing.json", timing)
    write_json(cell.path / "environment.json", environment)
    write_summary(
        cell.path / "summary.json",
        summarise(matrix),
        summarise(perfect),
        model=cell.args.model,
        dataset=cell.args.dataset,
        seed=cell.seed,
        config_hash=RunDirectory(cell.args).hash,
        n_tasks=2,
        steps=40,
        parameters=1234,
        stored_bytes=5678,
    )


def call(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def wait_for(what: Callable[[], object], seconds: float = 120, pause: float = 0.01) -> None:
    """However busy the machine is."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(pause)


def begun(cell: Cell) -> bool:
    """It has a checkpoint, and is not finished."""
    return (cell.path / "checkpoint.pt").exists() and read_summary(cell.path) is None


def attempts(cell: Cell) -> int:
    return log_file(cell.path).read_text().count("$ python main.py")


def assert_same_results(cells: list[Cell], elsewhere: Path) -> None:
    """As those of the same commands in this process, undisturbed."""
    for cell in cells:
        args = parse_args([*cell.argv[:-2], f"--base_path={elsewhere}", cell.argv[-1]])
        train(*initialize(args))
        directory = elsewhere / "results" / cell.path.relative_to(cell.path.parents[2])
        for name in RESULT_FILES:
            assert (cell.path / name).read_bytes() == (directory / name).read_bytes(), (cell.name, name)
