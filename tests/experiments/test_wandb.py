"""Runs of a grid in wandb: groups, tags and metrics by which a dashboard filters like a table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from experiment_helpers import DIGITS, expanded, write_grid
from helpers import ROOT
from wandb_helpers import keep_offline, read_sessions

from experiments.cells import with_wandb_labels
from experiments.results.records import METRICS, read_record
from experiments.tables import load_table
from utils.cli.parse import parse_args

GRID = {
    "flags": DIGITS,
    "columns": {"D, 50": {"buffer_size": 50}, "D, 60": {"buffer_size": 60}},
    "rows": {"ER": {"model": "er"}, "SGD": {"model": "sgd", "buffer_size": None}},
}


def labels(argv: tuple[str, ...]) -> tuple[str, list[str]]:
    """Group and tags of a command line that ends in them."""
    start = max(i for i, word in enumerate(argv) if word == "--wandb_tags")
    return argv[start - 1].removeprefix("--wandb_group="), list(argv[start + 1 :])


def test_a_shared_run_has_the_tags_of_all_cells_that_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "demo")
    expansion = expanded(tmp_path, **GRID)
    by_name = {cell.name: cell for cell in with_wandb_labels([expansion])}
    assert labels(by_name["ER, D, 60, seed 0"].argv) == ("grid seq-digits", ["grid", "ER", "D, 60", "D", "60"])
    for column in ("D, 50", "D, 60"):
        group, tags = labels(by_name[f"SGD, {column}, seed 0"].argv)
        assert (group, tags) == ("grid seq-digits", ["grid", "SGD", "D, 50", "D", "50", "D, 60", "60"])
    assert [cell.path for cell in with_wandb_labels([expansion])] == [cell.path for cell in expansion.cells]


def test_what_a_grid_says_itself_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "demo")
    own = {"wandb_group": "mine", "wandb_tags": ["first", "x" * 70]}
    (cell,) = with_wandb_labels([expanded(tmp_path, flags=DIGITS | own, rows={"ER": {"model": "er"}})])
    assert labels(cell.argv) == ("mine", ["first", "x" * 64, "grid", "ER"])


def test_a_name_like_a_flag_is_a_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "demo")
    (cell,) = with_wandb_labels([expanded(tmp_path, flags=DIGITS, rows={"--list": {"model": "er"}})])
    assert parse_args(list(cell.argv)).wandb_tags == ["grid", " --list"]


def test_without_wandb_command_lines_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    expansion = expanded(tmp_path, **GRID)
    assert with_wandb_labels([expansion]) == expansion.cells


def test_a_table_knows_its_profile() -> None:
    assert load_table("faia", "smoke").profile == "smoke"


@pytest.mark.slow
def test_runs_log_to_the_project_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_offline(tmp_path, monkeypatch)
    grid = write_grid(tmp_path / "grid.yaml", flags=DIGITS, rows={"ER": {"model": "er"}})
    command = [sys.executable, ROOT / "reproduce.py", "run", "--grid", grid, "--base_path", tmp_path / "data"]
    names = ["--wandb_project", "demo", "--wandb_entity", "lab"]
    # A process of its own: the server that forks runs has the environment of the first command that needs it.
    subprocess.run([*command, *names, "--devices", "cpu"], check=True)
    (cell,) = expanded(tmp_path, flags=DIGITS, rows={"ER": {"model": "er"}}).cells
    (session,) = read_sessions(cell.path)
    run = session.run
    assert (run.project, run.entity, run.run_group, list(run.tags)) == (
        "demo",
        "lab",
        "grid seq-digits",
        ["grid", "ER"],
    )
    record = read_record(cell.path, cell.args)
    assert record is not None
    for name in ("FAIA", "FAA", "FF", "T1", "T2", "T3", "seconds"):
        assert session.summary[name] == pytest.approx(METRICS[name](record), rel=1e-6), name
