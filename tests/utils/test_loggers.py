"""metrics.jsonl: the same bytes whether a run is interrupted or not, and what is in them."""

from __future__ import annotations

import json
import math
import os
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from utils.errors import UserError
from utils.loggers import WINDOW, MetricsLog, mean_accuracy_line, to_host

STEPS, EPOCHS, TASKS = 130, 2, 2  # windows end at steps 50, 100, …, 250 of a task, and with it at 260


def loss_at(task: int, epoch: int, step: int) -> float:
    return 1.0 / (1 + step) + 10 * epoch + 100 * task


def train(log: MetricsLog, device: torch.device, start: int = 0, stop: int | None = None) -> None:
    """A loop in miniature: run global steps start..stop−1, with the events a real one has."""
    position = 0
    for task in range(TASKS):
        for epoch in range(EPOCHS):
            for step in range(STEPS):
                if position == stop:
                    return
                if position >= start:
                    log.begin_task(task)
                    log.begin_epoch(epoch)
                    values = {"loss": torch.tensor(loss_at(task, epoch, step), device=device), "lr": 0.1}
                    if step % 3 == 0:
                        values["replay"] = torch.tensor(step / 7, device=device)
                    log.add_step(values)
                position += 1
        if position > start:
            log.event("eval", class_il=[12.5] * (task + 1), task_il=[50.0] * (task + 1))


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.numeric
def test_windows_hold_every_step(tmp_path: Path, device: torch.device) -> None:
    path = tmp_path / "metrics.jsonl"
    train(MetricsLog(path), device)
    records = lines(path)
    first = [(r["epoch"], r["step"], len(r["loss"])) for r in records if r["event"] == "train" and r["task"] == 1]
    assert first == [(1, 50, 50), (1, 100, 50), (2, 150, 50), (2, 200, 50), (2, 250, 50), (2, 260, 10)]
    assert [r["event"] for r in records].count("eval") == 2
    losses = [loss for r in records if r["event"] == "train" for loss in r["loss"]]
    expected = [loss_at(t, e, s) for t in range(TASKS) for e in range(EPOCHS) for s in range(STEPS)]
    assert losses == pytest.approx(expected, rel=5e-6)
    assert records[0]["loss"][2] == 0.333333  # six significant digits


def test_exact_bytes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.begin_task(0)
    log.begin_epoch(0)
    log.add_step({"loss": torch.tensor(2.5), "lr": 0.1})
    log.add_step({"loss": 1 / 3, "lr": 0.1, "distill": torch.tensor([7])})
    log.flush()
    log.begin_epoch(1)
    log.add_step({"loss": torch.tensor(math.nan), "lr": 0.1})
    log.add_step({"loss": torch.tensor(math.inf), "lr": 0.05})
    log.event("eval", class_il=np.array([100 / 3, math.nan]), task_il=[np.float64(50)])
    assert path.read_text() == (
        '{"event":"train","task":1,"epoch":1,"step":2,"loss":[2.5,0.333333],"lr":0.1,"distill":[null,7.0]}\n'
        '{"event":"train","task":1,"epoch":2,"step":4,"loss":["nan","inf"],"lr":[0.1,0.05]}\n'
        '{"event":"eval","task":1,"epoch":2,"step":4,"class_il":[33.333333333333336,null],"task_il":[50.0]}\n'
    )


@pytest.mark.parametrize("stop", [0, 1, 49, 50, 51, 129, 130, 131, 259, 260, 261, 300, 519])
@pytest.mark.parametrize("lost", [0, 1, 75, 400])
def test_interrupted_and_resumed_gives_the_same_bytes(tmp_path: Path, stop: int, lost: int) -> None:
    """The checkpoint is taken at `stop`; the process makes `lost` more steps before it is killed."""
    device = torch.device("cpu")
    straight, broken = tmp_path / "straight.jsonl", tmp_path / "broken.jsonl"
    train(MetricsLog(straight), device)
    log = MetricsLog(broken)
    train(log, device, stop=stop)
    torch.save(log.state_dict(), tmp_path / "state.pt")
    train(log, device, start=stop, stop=min(stop + lost, TASKS * EPOCHS * STEPS))
    resumed = MetricsLog(broken)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    train(resumed, device, start=stop)
    assert broken.read_bytes() == straight.read_bytes()


def test_taking_checkpoints_changes_nothing(tmp_path: Path, device: torch.device) -> None:
    straight, often = tmp_path / "straight.jsonl", tmp_path / "often.jsonl"
    train(MetricsLog(straight), device)
    log = MetricsLog(often)
    for step in range(0, TASKS * EPOCHS * STEPS, 7):
        train(log, device, start=step, stop=step + 7)
        log.state_dict()
    assert often.read_bytes() == straight.read_bytes()


def test_resume_truncates_and_refuses_a_shortened_file(tmp_path: Path, device: torch.device) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    train(log, device, stop=60)
    state = log.state_dict()
    assert state["size"] == path.stat().st_size
    assert [row["loss"] for row in state["pending"]] == pytest.approx([loss_at(0, 0, s) for s in range(50, 60)])
    with path.open("a") as file:
        file.write("half a li")
    MetricsLog(path).load_state_dict(state)
    assert path.stat().st_size == state["size"]
    os.truncate(path, state["size"] - 1)
    with pytest.raises(UserError, match=f"has {state['size'] - 1} bytes, but had {state['size']}"):
        MetricsLog(path).load_state_dict(state)
    assert path.stat().st_size == state["size"] - 1  # left as it was found


def test_a_new_run_empties_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("from a run that was killed before its first checkpoint\n")
    MetricsLog(path).event("eval", class_il=[1.0])
    assert lines(path) == [{"event": "eval", "task": 0, "epoch": 0, "step": 0, "class_il": [1.0]}]


def test_windows_are_handed_on(tmp_path: Path, device: torch.device) -> None:
    windows = []
    train(MetricsLog(tmp_path / "metrics.jsonl", windows.append), device, stop=STEPS + WINDOW)
    assert [(w.task, w.epoch, w.global_step, len(w.rows)) for w in windows] == [
        (0, 0, 50, 50),
        (0, 0, 100, 50),
        (0, 1, 150, 50),
    ]
    assert windows[0].rows[1].keys() == {"loss", "lr"}
    assert windows[0].rows[3] == pytest.approx({"loss": 0.25, "lr": 0.1, "replay": 3 / 7})


def test_latest_loss(tmp_path: Path, device: torch.device) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    assert math.isnan(log.latest_loss())
    train(log, device, stop=50)
    assert log.latest_loss() == pytest.approx(loss_at(0, 0, 49))
    train(log, device, start=50, stop=52)
    resumed = MetricsLog(tmp_path / "metrics.jsonl")
    resumed.load_state_dict(log.state_dict())
    assert resumed.latest_loss() == pytest.approx(loss_at(0, 0, 51))


def test_pending_losses_do_not_keep_the_graph(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    weights = torch.ones(3, requires_grad=True)
    alive = weakref.ref(weights)
    log.add_step({"loss": weights.sum()})
    del weights
    assert alive() is None and log.latest_loss() == 3


def test_one_transfer_per_window(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    stack = torch.stack
    monkeypatch.setattr(torch, "stack", lambda tensors: calls.append(len(tensors)) or stack(tensors))
    rows = [{"loss": torch.tensor(0.1), "half": torch.tensor(0.5, dtype=torch.bfloat16), "n": 3}] * 4
    assert to_host(rows)[3] == {"loss": pytest.approx(0.1), "half": 0.5, "n": 3.0}
    assert calls == [8]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.symlink_to("/dev/full")
    log = MetricsLog(path)
    # Private here and below, because the log opens its file by itself, and a device can't be cut to a length.
    log._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    log._file.truncate = lambda size: None  # a disk that fills up
    with pytest.raises(UserError, match=r"metrics\.jsonl: No space left on device") as error:
        log.event("eval")
    assert "\n" not in str(error.value)


def test_a_line_that_does_not_fit_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.event("eval", class_il=[1.0])
    before = path.read_bytes()
    real = log._file  # a disk that fills up

    class NearlyFull:
        """Takes ten bytes, then no more."""

        room = 10
        truncate, fileno, close = real.truncate, real.fileno, real.close

        def write(self, data: bytes) -> int:
            if self.room == 0:
                raise OSError(28, "No space left on device")
            written, self.room = real.write(data[: self.room]), 0
            return written

    log._file = NearlyFull()  # a disk that fills up
    with pytest.raises(UserError, match="No space left on device"):
        log.event("eval", class_il=[2.0])
    assert path.read_bytes() == before


def test_unwritable_directory_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write"):
        MetricsLog(tmp_path / "missing" / "metrics.jsonl").event("eval")


def test_console_line() -> None:
    line = mean_accuracy_line([90.0, 45.0, 30.126], [95.0, 85.0, 75.0])
    assert line == "Accuracy for 3 task(s): [Class-IL]: 55.04 % [Task-IL]: 85.00 %"
