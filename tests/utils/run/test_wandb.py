"""wandb: what it is given, read back from its offline file; and that a broken one never stops a run."""

from __future__ import annotations

import json
import logging
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from wandb_helpers import install_stub, keep_offline, make_args, make_logger, read_sessions, window

from utils.loggers import MetricsLog
from utils.run.heatmap import CELL, MARGIN, accuracy_heatmap

NAN = float("nan")


# -- the real wandb, offline ---------------------------------------------------------------------------------


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_offline(tmp_path, monkeypatch)


@pytest.mark.slow
def test_offline_run_and_its_resumption(tmp_path: Path, offline: None) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    args = make_args()
    first = make_logger(directory, args)
    first.log_window(window(1, 50))
    first.log_accuracy(0, [90.0], [90.0], global_step=50)
    first.log_matrix(np.array([[90.0, NAN], [NAN, NAN]]), global_step=50)
    first.log_window(window(51, 100))
    first.finish(exit_code=143)

    # The checkpoint was taken at step 40: what was logged after it comes again.
    second = make_logger(directory, make_args())
    second.log_window(window(1, 50))
    second.log_accuracy(0, [90.0], [90.0], global_step=50)
    second.log_matrix(np.array([[90.0, NAN], [NAN, NAN]]), global_step=50)
    second.log_window(window(51, 120))
    second.log_accuracy(1, [60.0, 80.0], [85.0, 95.0], global_step=120, epoch=3)
    second.log_accuracy(1, [61.0, 81.0], [86.0, 96.0], global_step=120)
    second.log_matrix(np.array([[90.0, NAN], [61.0, 81.0]]), global_step=120)
    second.log_accuracy(1, [50.0], [60.0], global_step=120, prefix="FINAL")
    second.log_summary({"FAA": 71.0, "FF": 29.0, "FWT": None}, {"FAA": 91.0}, {0: 2.0, 1: 3.0})
    second.finish()
    assert args.nowand == 0

    one, two = read_sessions(directory)
    assert one.run.run_id == two.run.run_id and one.run.run_id.startswith("ab12-")
    assert one.run.display_name == f"er_{one.run.run_id}"
    assert (one.run.project, one.run.entity, one.run.run_group) == ("dgc", "lab", "seq-cifar10")
    assert sorted(one.run.tags) == ["grid", "tfcl"]
    config = {item.key: json.loads(item.value_json) for item in one.run.config.update}
    assert (config["lr"], config["buffer_size"]) == (0.1, 500)
    assert (one.exit_code, two.exit_code) == (143, 0)

    assert sorted(one.history) == list(range(1, 101))
    assert sorted(two.history) == list(range(101, 121))  # monotone: no step comes twice
    for step in range(1, 121):
        row = (one if step <= 100 else two).history[step]
        assert (row["loss"], row["lr"]) == (step / 10, 0.1)

    results = {key: v for key, v in one.history[50].items() if key.startswith(("RESULT", "Task", "AA"))}
    assert results == {
        "Task": 0,
        "AA": 90.0,
        "RESULT_class_mean_accs": 90.0,
        "RESULT_task_mean_accs": 90.0,
        "RESULT_class_acc_0": 90.0,
        "RESULT_task_acc_0": 90.0,
    }
    last = two.history[120]
    assert (last["Task"], last["AA"], last["RESULT_task_mean_accs"]) == (1, 71.0, 91.0)
    assert (last["RESULT_class_acc_0"], last["RESULT_class_acc_1"]) == (61.0, 81.0)
    assert (last["RESULT_class_mean_accs_epoch_3"], last["FINAL_class_mean_accs"]) == (70.0, 50.0)
    assert (two.summary["FAA"], two.summary["FF"], two.summary["FAA_task_il"]) == (71.0, 29.0, 91.0)
    assert (two.summary["seconds"], two.summary["T1"], two.summary["T2"]) == (5.0, 2.0, 3.0)
    assert "FWT" not in two.summary and two.summary["loss"] == 12.0
    images = list(directory.glob("wandb/offline-run-*/files/media/images/accuracy_matrix*.png"))
    assert len(images) == 2  # one per task


def test_losses_come_from_the_metrics_log(tmp_path: Path, offline: None) -> None:
    logger = make_logger(tmp_path, make_args(wandb_name="mine"))
    log = MetricsLog(tmp_path / "metrics.jsonl", logger.log_window)
    log.begin_task(0)
    for step in range(60):
        log.add_step({"loss": step / 3, "lr": 0.1} | ({"replay": 1.0} if step == 7 else {}))
    log.flush()
    logger.finish()
    (session,) = read_sessions(tmp_path)
    assert [session.history[step]["loss"] for step in range(1, 61)] == [step / 3 for step in range(60)]
    assert [step for step, row in session.history.items() if "replay" in row] == [8]
    assert session.run.display_name.startswith("mine_ab12-")


def test_two_directories_are_two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal configs, run twice or by two people in one project, must not pour into one wandb run."""
    calls = install_stub(monkeypatch)
    for name in ("a", "b", "a"):
        make_logger(tmp_path / name, make_args())
    first, second, again = [kwargs["id"] for name, kwargs in calls if name == "init"]
    assert first == again != second


# -- stubs ---------------------------------------------------------------------------------------------------


def use_everything(directory: Path, args: Namespace) -> None:
    logger = make_logger(directory, args)
    for task in range(2):
        logger.log_window(window(50 * task + 1, 50 * task + 50))
        logger.log_accuracy(task, [50.0] * (task + 1), [60.0] * (task + 1), global_step=50 * task + 50)
        logger.log_matrix(np.full((2, 2), 10.0 * task), global_step=50 * task + 50)
    logger.log_summary({"FAA": 1.0}, {"FAA": 2.0}, {0: 1.0})
    logger.finish()


@pytest.mark.parametrize("broken", ["init", "define_metric", "log", "update", "finish"])
def test_broken_wandb_gives_one_warning(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = install_stub(monkeypatch, broken)
    args = make_args()
    with caplog.at_level(logging.WARNING):
        use_everything(tmp_path, args)
    (record,) = caplog.records
    assert "wandb failed" in record.getMessage() and "RuntimeError: the server said no" in record.getMessage()
    assert args.nowand == 1
    assert calls[-1][0] == broken  # not tried again


@pytest.mark.parametrize("error", [ModuleNotFoundError("No module named 'wandb'"), AttributeError("protobuf")])
def test_missing_wandb_gives_one_warning(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr("utils.run.wandb_logger.importlib.import_module", fail)
    args = make_args()
    use_everything(tmp_path, args)
    assert len(caplog.records) == 1 and str(error) in caplog.text and args.nowand == 1


def test_full_disk_is_wandb_s_problem_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install_stub(monkeypatch)
    (tmp_path / "file").write_text("")
    use_everything(tmp_path / "file", make_args())
    assert len(caplog.records) == 1


def test_off_means_not_even_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # an import would raise
    use_everything(tmp_path, make_args(nowand=1))
    assert list(tmp_path.iterdir()) == []


def test_steps_the_server_has_are_not_logged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resumed on a machine that does not have the run's directory up to date: the server knows best."""
    calls = install_stub(monkeypatch, starting_step=71)
    args = make_args()
    logger = make_logger(tmp_path, args)
    logger.log_window(window(41, 90))
    assert [kwargs["step"] for name, kwargs in calls if name == "log"] == list(range(71, 91))
    logger.log_accuracy(0, [1.0], [1.0], global_step=60)  # its row is closed on the server
    assert calls[-1] == ("log", {"step": 71})
    assert args.wandb_url == "https://wandb.test/run"


# -- the image -----------------------------------------------------------------------------------------------


def test_heatmap_colours() -> None:
    image = accuracy_heatmap(np.array([[100.0, NAN], [0.0, 50.0]]), "title")
    corner = [[image.getpixel((MARGIN + j * CELL + 2, MARGIN + k * CELL + 2)) for j in range(2)] for k in range(2)]
    assert corner[0] == [(253, 231, 60), (255, 255, 255)]
    assert corner[1] == [(48, 18, 89), (50, 146, 130)]
