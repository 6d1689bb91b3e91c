"""Result files: exact round trips, fixed bytes, and a report that can be read."""

from __future__ import annotations

import getpass
import json
import math
import platform
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from utils.errors import UserError
from utils.metrics import summarise
from utils.run import write_results
from utils.run.environment import LIMITS, environment
from utils.run.final_report import final_report, final_table
from utils.run.read_results import read_matrices, reading
from utils.run.timing import Timing

NAN = math.nan
CLASS_IL = np.array([[90.0, NAN, NAN], [60.0, 80.0, NAN], [30.0, 50.0, 70.0]])
TASK_IL = np.array([[90.0, NAN, NAN], [85.0, 95.0, NAN], [80.0, 90.0, 100.0]])


def random_matrix(tasks: int) -> np.ndarray:
    a = np.random.default_rng(tasks).uniform(0, 100, (tasks, tasks))
    a[np.triu_indices(tasks, 1)] = NAN
    a[0, 0] = 100.0
    return a


def test_accuracy_csv_bytes(tmp_path: Path) -> None:
    path = tmp_path / "accuracy.csv"
    write_results.write_accuracy(path, CLASS_IL[:2, :2], TASK_IL[:2, :2], untrained=([10.0, 5.0], [NAN, 50.0]))
    assert path.read_text() == (
        "after_task,task,class_il,task_il\n0,1,10.0,\n0,2,5.0,50.0\n1,1,90.0,90.0\n2,1,60.0,85.0\n2,2,80.0,95.0\n"
    )
    class_il, task_il, _ = read_matrices(path)
    np.testing.assert_array_equal(class_il, CLASS_IL[:2, :2])
    np.testing.assert_array_equal(task_il, TASK_IL[:2, :2])


@pytest.mark.parametrize("tasks", [1, 3, 20])
def test_accuracy_round_trip_is_exact(tmp_path: Path, tasks: int) -> None:
    class_il, task_il = random_matrix(tasks) / 3, random_matrix(tasks) / 7
    task_il[-1, 0] = NAN  # measured for one setting only
    write_results.write_accuracy(tmp_path / "accuracy.csv", class_il, task_il)
    read = read_matrices(tmp_path / "accuracy.csv")
    np.testing.assert_array_equal(read[0], class_il)
    np.testing.assert_array_equal(read[1], task_il)


def test_accuracy_of_a_joint_run_and_of_none(tmp_path: Path) -> None:
    only_last = np.full((3, 3), NAN)
    only_last[2] = [1.0, 2.0, 3.0]
    write_results.write_accuracy(tmp_path / "accuracy.csv", only_last, only_last)
    np.testing.assert_array_equal(read_matrices(tmp_path / "accuracy.csv")[0], only_last)
    write_results.write_accuracy(tmp_path / "accuracy.csv", np.full((3, 3), NAN), np.full((3, 3), NAN))
    assert read_matrices(tmp_path / "accuracy.csv")[0].shape == (0, 0)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "after_task,task,class_il,task_il\n1,1,x,2\n1,1\n"])
def test_bad_accuracy_file_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "accuracy.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=r"accuracy\.csv") as error, reading(path):
        read_matrices(path)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="No such file"), reading(tmp_path / "none.csv"):
        read_matrices(tmp_path / "none.csv")


def test_per_class_and_confusion(tmp_path: Path) -> None:
    write_results.write_per_class(tmp_path / "per_class.csv", np.array([[50.0, NAN], [100 / 3, 0.0]]))
    assert (tmp_path / "per_class.csv").read_text() == (
        "after_task,class,accuracy\n1,0,50.0\n2,0,33.333333333333336\n2,1,0.0\n"
    )
    write_results.write_confusion(tmp_path / "confusion.csv", np.array([[5, 1], [2, 4]]))
    assert (tmp_path / "confusion.csv").read_text() == "true_class,0,1\n0,5,1\n1,2,4\n"


def write_summary(path: Path, **changes: object) -> dict:
    facts: dict = dict(model="er", dataset="seq-cifar10", seed=3, config_hash="ab12", n_tasks=3, steps=99, parameters=7)
    facts["stored_bytes"] = 8
    write_results.write_summary(path, summarise(CLASS_IL), summarise(TASK_IL), **facts | changes)
    return json.loads(path.read_text())


def test_summary(tmp_path: Path) -> None:
    summary = write_summary(tmp_path / "summary.json")
    assert summary["class_il"] == pytest.approx({"FAA": 50.0, "FAIA": 70.0, "FF": 45.0, "BWT": -45.0, "FWT": None})
    assert summary["task_il"] == pytest.approx({"FAA": 90.0, "FAIA": 90.0, "FF": 7.5, "BWT": -7.5, "FWT": None})
    assert summary["definitions"].keys() == summary["class_il"].keys()
    facts = {key: summary[key] for key in ("model", "dataset", "seed", "config_hash", "n_tasks", "steps", "parameters")}
    assert list(facts.values()) == ["er", "seq-cifar10", 3, "ab12", 3, 99, 7] and summary["stored_bytes"] == 8
    assert list(summary) == sorted(summary)
    assert "test" not in summary
    write_summary(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "summary.json").read_bytes()


def test_environment_names_versions_but_nobody() -> None:
    found = environment()
    assert found["torch"] == torch.__version__
    assert found["numpy"] == np.__version__
    assert found["python"] == platform.python_version()
    assert found["threads"] == torch.get_num_threads()
    assert found["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    commit = found["git_commit"]
    assert commit is None or re.fullmatch("[0-9a-f]{40}(-dirty)?", commit)
    values = [str(value) for value in found.values()]
    for private in (platform.node(), getpass.getuser(), str(Path.home()), str(Path.cwd())):
        assert private not in values
    assert not any("/home" in value or str(Path.cwd()) in value for value in values)


def test_limits_on_instructions_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LIMITS:
        monkeypatch.delenv(name, raising=False)
    assert environment()["cpu_limits"] is None
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert environment()["cpu_limits"] == "MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=AVX2"


def test_table_of_a_hand_made_matrix() -> None:
    table = final_table(CLASS_IL, TASK_IL, summarise(CLASS_IL), summarise(TASK_IL)).splitlines()
    assert table[1:6] == [
        "        1      2      3 |Class-IL Task-IL",
        " 1  90.00               |   90.00   90.00",
        " 2  60.00  80.00        |   70.00   90.00",
        " 3  30.00  50.00  70.00 |   50.00   90.00",
        "",
    ]
    starts = [line[:23] for line in table[6:] if not line.startswith(" " * 10)]
    assert starts == [
        "      Class-IL  Task-IL",
        "FAA      50.00    90.00",
        "FAIA     70.00    90.00",
        "FF       45.00     7.50",
        "BWT     -45.00    -7.50",
    ]
    assert table[-1].endswith("  backward transfer: mean over j < T of a[T,j] - a[j,j]")


def test_table_shows_forward_transfer_only_when_measured() -> None:
    measured = summarise(CLASS_IL, np.array([NAN, 12.0, 16.0]), np.array([10.0, 10.0, 10.0]))
    table = final_table(CLASS_IL, TASK_IL, measured, summarise(TASK_IL))
    assert re.search(r"^FWT       4\.00        -  forward transfer: ", table, re.MULTILINE)


@pytest.mark.parametrize("tasks", [1, 2, 5, 10, 11, 12, 13, 14, 20, 21, 50, 120])
def test_table_fits_100_columns(tasks: int) -> None:
    a = random_matrix(tasks)
    table = final_table(a, a, summarise(a), summarise(a)).splitlines()
    assert max(map(len, table)) <= 100
    rows = [line for line in table[2:] if "|" in line]
    cells = [line.split("|")[0].split() for line in rows]
    assert len(cells) == min(tasks, 18 if tasks > 20 else 20)
    if tasks <= 20:
        for k, row in enumerate(cells):
            assert len(row) == k + 2  # the label, then all tasks seen
            np.testing.assert_allclose([float(cell) for cell in row[1:]], a[k, : k + 1], atol=0.51)
    assert float(rows[-1].split()[-1]) == pytest.approx(a[-1].mean(), abs=0.005)


def test_table_of_a_run_that_was_stopped_or_joint() -> None:
    stopped = np.full((5, 5), NAN)
    stopped[:2, :2] = CLASS_IL[:2, :2]
    table = final_table(stopped, stopped, summarise(stopped), summarise(stopped)).splitlines()
    assert [line.split()[0] for line in table[2:4]] == ["1", "2"] and table[4] == ""
    joint = np.full((3, 3), NAN)
    joint[2] = [30.0, 60.0, 90.0]
    table = final_table(joint, joint, summarise(joint), summarise(joint)).splitlines()
    assert table[2] == " 3  30.00  60.00  90.00 |   60.00   60.00"
    assert "FF           -        -" in "\n".join(table)


def test_report_from_the_files(tmp_path: Path) -> None:
    write_results.write_accuracy(tmp_path / "accuracy.csv", CLASS_IL, TASK_IL)
    write_summary(tmp_path / "summary.json")
    expected = final_table(CLASS_IL, TASK_IL, summarise(CLASS_IL), summarise(TASK_IL))
    assert final_report(tmp_path) == expected
    write_summary(tmp_path / "summary.json", test={"class_il": [10.0, 20.0], "task_il": [60.0, 70.0]})
    assert final_report(tmp_path).endswith("On the test set: [Class-IL]: 15.00 % [Task-IL]: 65.00 %")
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(UserError, match=r"summary\.json"):
        final_report(tmp_path)


def test_timing_adds_up_over_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("utils.run.timing.perf_counter", lambda: now[0])
    first = Timing()
    with first.measure("train", 0):
        now[0] += 3
        for _ in range(10):
            first.step(images=32)
        torch.save(first.state_dict(), tmp_path / "state.pt")
        now[0] += 100  # lost in a crash
        first.step(images=32)
    second = Timing()
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    with second.measure("train", 0):
        now[0] += 2
        second.step(images=12)
    with second.measure("eval", 0):
        now[0] += 1
    report = second.report()
    assert report["tasks"] == [{"task": 1, "train_seconds": 5.0, "eval_seconds": 1.0}]
    assert (report["steps"], report["steps_per_second"], report["images_per_second"]) == (11, 2.2, 66.4)
    assert (report["sessions"], report["started"]) == (2, first.started)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", report["finished"])
    write_results.write_json(tmp_path / "timing.json", report)
