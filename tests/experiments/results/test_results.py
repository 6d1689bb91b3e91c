"""Tables, raw results, plans and the state of a grid, from runs that were written by hand."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from experiment_helpers import DIGITS, expanded, finish

from experiments.cells import Expansion
from experiments.grid import PaperValue
from experiments.report.tables import markdown
from experiments.results.collection import Results, read_results, write_results
from experiments.results.records import METRICS
from experiments.running import estimates as estimates_module
from experiments.running.cell_files import cell_directory, log_file, reason_in, write_failure
from experiments.running.estimates import Estimate, Estimates, kind_of
from experiments.running.leases import claim
from experiments.running.plan import plan
from experiments.running.status import status, status_of
from utils.run.environment import environment
from utils.status import duration

ROWS = {
    "ER": {"model": "er"},
    "DGC-ER": {"model": "dgc_er", "against": "ER"},
    "SGD": {"model": "sgd", "buffer_size": None},
}


@pytest.fixture
def half_done(tmp_path: Path) -> Expansion:
    """Two seeds of ER and DGC-ER, one of SGD with the buffers' columns sharing its run, the rest missing."""
    columns = {"50": {"buffer_size": 50}, "60": {"buffer_size": 60}}
    expansion = expanded(
        tmp_path, title="Half", flags=DIGITS, columns=columns, rows=ROWS, seeds=2, metrics=["FAA", "T2"]
    )
    cells = {(c.row, c.column, c.seed): c for c in expansion.cells}
    finish(cells["ER", "50", 0], 90, (40, 60), seconds=10, cpu="a")
    finish(cells["ER", "50", 1], 90, (50, 60), seconds=20, cpu="a")
    finish(cells["DGC-ER", "50", 0], 90, (42, 60), seconds=10, cpu="a")
    finish(cells["DGC-ER", "50", 1], 90, (56, 60), seconds=10, cpu="b")
    finish(cells["SGD", "60", 1], 90, (0, 90), seconds=5, cpu="a")
    return expansion


def results_of(expansion: Expansion) -> Results:
    (results,) = read_results([expansion])
    return results


def test_the_table_by_hand(half_done: Expansion) -> None:
    """FAA of ER: 50 and 55; of DGC-ER: 51 and 58, so the differences are 1 and 3; t_{0.975,1} = 12.706."""
    text = markdown(results_of(half_done))
    lines = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line] for line in lines]
    assert rows[:4] == [
        ["", "50", "60"],
        ["ER", "52.50 ± 2.50 (2)", "not run"],
        ["DGC-ER", "54.50 ± 3.50 (2)", "not run"],
        ["SGD", "45.00 ± – (1)", "45.00 ± – (1)"],
    ]
    assert rows[5] == ["DGC-ER − (ER)", "+2.00 [-10.71, +14.71], p 0.3 (2)", "–"]
    assert rows[7] == ["ER", "30.00 ± 10.00 (2)", "not run"]  # seconds of the second task


def test_the_papers_numbers_stand_beside_ours_and_what_is_missing_is_said(half_done: Expansion) -> None:
    paper = {"FAA": {"ER": {"50": PaperValue("61.08 ± 1.23", 61.08, 1.23)}}}
    grid = replace(half_done.grid, paper=paper, metrics=["FAA"], conditions="Profile tiny.", notes=["Mind the gap."])
    expansion = replace(half_done, grid=grid, unavailable={("SGD", "60"): "unknown model 'sgd'"})
    text = markdown(results_of(expansion))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    assert rows[0] == ["", "50", "paper", "60"]
    assert rows[1] == ["ER", "52.50 ± 2.50 (2)", "61.08 ± 1.23", "not run"]
    assert rows[3] == ["SGD", "45.00 ± – (1)", "", "not available"]
    assert "Profile tiny. Mean ± standard error" in text
    assert text.endswith("- Mind the gap.\n- Not available: SGD (unknown model 'sgd').")


def test_raw_results_hold_each_run_once(half_done: Expansion, tmp_path: Path) -> None:
    write_results([results_of(half_done)], tmp_path / "out")
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(content["runs"]) == 5
    (sgd,) = [run for run in content["runs"] if run["model"] == "sgd"]
    assert sgd["cells"] == [["grid", "SGD", "50"], ["grid", "SGD", "60"]]
    assert (sgd["seed"], sgd["parameters"], sgd["steps"], sgd["class_il"]["FAA"]) == (1, 1234, 40, 45.0)
    assert sgd["average_accuracy"] == [90.0, 45.0] and sgd["timing"]["train_seconds_by_task"] == [5.0, 10.0]
    er = next(run for run in content["runs"] if run["model"] == "er")
    assert (er["buffer_size"], er["stored_bytes"]) == (50, 5678)
    assert content["environments"] == [{"cpu": "a"}, {"cpu": "b"}] and er["environment"] == 0
    assert content["tables"][0]["against"] == {"DGC-ER": "ER"}
    assert str(tmp_path) not in json.dumps(content)
    with open(tmp_path / "out" / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6 and rows[0]["FAA"] == "50.0" and rows[0]["FF"] == "50.0" and rows[0]["FAA Task-IL"] == "100.0"
    assert set(METRICS) < set(rows[0]) and {row["profile"] for row in rows} == {""}  # a grid of one's own


def test_raw_results_name_their_profile(half_done: Expansion, tmp_path: Path) -> None:
    write_results([results_of(replace(half_done, grid=replace(half_done.grid, profile="tiny")))], tmp_path)
    with open(tmp_path / "results.csv", newline="") as file:
        assert {row["profile"] for row in csv.DictReader(file)} == {"tiny"}


def test_states_of_cells(half_done: Expansion) -> None:
    cells = {(c.row, c.column, c.seed): c for c in half_done.cells}
    running, failed = cells["ER", "60", 0], cells["ER", "60", 1]
    assert claim(cell_directory(running.path)) is not None
    running.path.mkdir()
    (running.path / "metrics.jsonl").write_text('{"event":"train","task":3,"epoch":1}\n{"event":"eval","task":3}\n')
    write_failure(failed.path, "the disk is full")
    states = {place: status_of(cell) for place, cell in cells.items()}
    assert (states["ER", "60", 0].state, states["ER", "60", 0].progress) == ("running", 2 / 5)
    assert (states["ER", "60", 1].state, states["ER", "60", 1].reason) == ("failed", "the disk is full")
    assert states["ER", "50", 0].state == "done" and states["SGD", "50", 1].state == "done"
    assert states["DGC-ER", "60", 0].state == "waiting"
    text = status([half_done])
    assert [cell.strip() for cell in text.splitlines()[2].split("|")[1:-1]] == ["grid", "5", "1", "1", "3"]
    assert "running: ER, 60, seed 0 (40%)" in text
    assert f"failed: ER, 60, seed 1: the disk is full\n        {log_file(failed.path)}" in text


def test_the_time_left_is_that_of_like_runs_on_this_machine(half_done: Expansion, tmp_path: Path) -> None:
    """Two tasks train for 3 times the given seconds, and are evaluated for 2; runs of other machines do not count."""
    here = {name: environment()[name] for name in ("cpu", "gpu")}
    for cell in half_done.cells:
        path = cell.path / "environment.json"
        if path.exists():
            path.write_text(json.dumps(here if cell.row != "DGC-ER" else here | {"cpu": "another"}))
    known = Estimates(half_done.cells)
    cells = {(c.row, c.column, c.seed): c for c in half_done.cells}
    assert (
        kind_of(cells["ER", "50", 0].args) == kind_of(cells["ER", "60", 1].args) != kind_of(cells["SGD", "50", 0].args)
    )
    estimate = known.of(cells["ER", "60", 0])
    assert estimate is not None and (estimate.seconds, estimate.source) == ((32 + 62) / 2, "finished runs")
    assert estimate.bytes > 500
    assert known.of(cells["DGC-ER", "60", 0]) is None
    text = plan([half_done], known, at_a_time=2)
    assert [cell.strip() for cell in text.splitlines()[2].split("|")[1:-1]] == ["grid", "10", "5", "10"]
    assert "10 runs in all, 5 done, 5 to go." in text
    # Two runs of ER (47 s each) and one of SGD (17 s).
    assert "1 min 51 s of work, 56 s with 2 at a time (measured on this machine: finished runs for 3 of them)" in text
    assert "Not included: 2 runs (not measured)." in text


def test_the_part_that_is_done_is_of_the_tasks_that_are_run(tmp_path: Path) -> None:
    """Tasks 2 to 4 of five, of which the third is under way."""
    (cell,) = expanded(tmp_path, flags=DIGITS | {"start_from": 1, "stop_after": 4}, rows={"ER": {"model": "er"}}).cells
    cell.path.mkdir(parents=True)
    (cell.path / "metrics.jsonl").write_text('{"event":"train","task":3}\n')
    assert status_of(cell).progress == 1 / 3
    (cell.path / "metrics.jsonl").write_text('{"event":"train","task":2}\n')
    assert status_of(cell).progress == 0


def test_runs_on_the_processor_tell_nothing_about_those_on_its_gpu(
    half_done: Expansion, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = environment() | {"gpu": "A GPU"}
    monkeypatch.setattr("utils.run.environment.environment", lambda: here)
    cells = {(c.row, c.column, c.seed): c for c in half_done.cells}
    for seed, device in ((0, "cpu"), (1, "cuda:0")):
        path = cells["ER", "50", seed].path
        (path / "environment.json").write_text(json.dumps(here))
        (path / "config.yaml").write_text(f"args: {{device: '{device}'}}\n")

    def seconds(device: str | None) -> float:
        estimate = Estimates(half_done.cells, device).of(cells["ER", "60", 0])
        assert estimate is not None
        return estimate.seconds

    assert [seconds(device) for device in ("cpu", "cuda:1", None)] == [32, 62, 47]


def test_a_probe_is_made_once_for_each_kind_of_run(half_done: Expansion, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def measured(argv: list[str], threads: int) -> dict[str, float | str]:
        asked.append(argv)
        return {"error": "no data"} if "--model=sgd" in argv else {"seconds": 7.0, "bytes": 100}

    monkeypatch.setattr(estimates_module, "measured", measured)
    for _ in range(2):  # what was measured is kept; what could not be is tried again
        known = Estimates([])
        known.probe(half_done.cells, 1, "cpu", lambda line: None)
        assert known.of(half_done.cells[0]) == Estimate(7.0, 100, "a probe")
        assert "(no data)" in plan([half_done], known, 1)
    models = [flag for argv in asked for flag in argv if flag.startswith("--model=")]
    assert models == ["--model=er", "--model=dgc_er", "--model=sgd", "--model=sgd"]


def test_the_reason_of_a_failure_is_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("old error\n$ python main.py --model er\nINFO: fine\nerror: no data; fetch it\n\n")
    start = len("old error\n")
    assert reason_in(log, start, 1) == "no data; fetch it"
    assert reason_in(log, start, -9) == "killed by SIGKILL (out of memory?)"
    assert reason_in(log, start, -40) == "killed by signal 40"
    assert reason_in(log, start, 0) == "ended without a summary: no data; fetch it"
    assert reason_in(log, os.path.getsize(log), 1) == "no output"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59, "59 s"), (60, "1 min"), (3725, "1 h 2 min"), (86400, "1 d"), (90061, "1 d 1 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
