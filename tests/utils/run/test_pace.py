"""What a run says about its length: once, from the first steps, and with ways out that exist."""

from __future__ import annotations

import re
import signal
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import run

import datasets
from models.er import Er
from utils.cli.parse import parse_args
from utils.run import pace
from utils.run.final_report import final_report
from utils.run.pace import FirstSteps, opening_lines, waits_for_threads
from utils.run.session import Stopped

ER = ["--buffer_size", "20", "--n_epochs", "2"]


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 0.0
        self.waits = 0
        monkeypatch.setattr(pace, "perf_counter", lambda: self.now)

    def wait(self) -> None:
        self.waits += 1


def test_the_speed_is_that_of_the_steps_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    steps, told = FirstSteps(clock.wait), []
    for seconds in (50.0, 20.0, 1.0, 1.5, 1.0, 9.0, 9.0):
        clock.now += seconds
        if steps.step():
            told.append(steps.seconds_per_step())
    assert told == [3.5 / 3]  # as soon as there were three seconds of it
    assert clock.waits == 2 and not steps.end()


def test_a_first_task_of_few_steps_tells_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    short, shorter = FirstSteps(clock.wait), FirstSteps(clock.wait)
    for _ in range(4):
        clock.now += 0.25
        assert not short.step()
    assert short.end() and short.seconds_per_step() == 0.25
    assert not short.end() and not short.step()
    shorter.step()
    assert shorter.end() and shorter.seconds_per_step() is None


def arguments(*flags: str, device: str = "cpu") -> Namespace:
    args = parse_args(["--model", "er", "--buffer_size", "500", *flags])
    args.device = torch.device(device)
    return args


WITH_SMALL = pytest.mark.skipif(
    "small" not in datasets.get_dataset_config_names("seq-cifar100"), reason="that scale is not there yet"
)


def test_the_line_is_about_the_whole_run() -> None:
    args = arguments()
    (line,) = opening_lines(args, 2, 78_500, 0, 0.04)
    speed = "at the present speed, longer if later tasks replay"
    assert line == f"Device cpu, 2 threads, 78,500 steps in all: about 52 min 20 s for the whole run {speed}"
    (line,) = opening_lines(args, 1, 1000, 400, 0.5)
    assert line.startswith(
        "Device cpu, 1 thread, 1,000 steps in all, 400 of them already made: about 5 min for what is"
    )
    assert opening_lines(args, 2, 40, 0, None) == ["Device cpu, 2 threads, 40 steps in all"]
    assert opening_lines(args, 2, None, 0, 0.1) == ["Device cpu, 2 threads, an unknown number of steps"]


@pytest.mark.parametrize(
    ("flags", "ways"),
    [
        pytest.param(
            ["--dataset", "seq-cifar100"],
            ["--dataset_config small", "--num_filters 16", "--n_epochs 1"],
            marks=WITH_SMALL,
        ),
        pytest.param(
            ["--dataset", "seq-cifar100", "--dataset_config", "5tasks", "--num_filters", "8"],
            ["--dataset_config small-5tasks", "--n_epochs 1"],
            marks=WITH_SMALL,
        ),
        (["--fitting_mode", "iters", "--n_iters", "9"], ["--mlp_hidden_size 25"]),
    ],
)
def test_a_long_run_on_a_cpu_is_told_the_way_out(
    flags: list[str], ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    args = arguments(*flags)
    assert len(opening_lines(args, 2, 3600, 0, 1.0)) == 1
    _, line = opening_lines(args, 2, 3601, 0, 1.0)
    assert "a machine that has a GPU" in line and re.findall(r"\((--.*?)\)", line) == ways
    for way in ways:
        arguments(*flags[: 2 * (flags[0] == "--dataset")], *way.split())  # such flags exist
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "a GPU (--device cuda)" in opening_lines(args, 2, 3601, 0, 1.0)[1]
    assert len(opening_lines(arguments(*flags, device="meta"), 2, 3601, 0, 1.0)) == 1


@pytest.mark.parametrize(
    ("net", "threads", "told"),
    [
        (torch.nn.Linear(128, 50), 2, True),
        (torch.nn.Linear(128, 50), 1, False),
        (torch.nn.Linear(1000, 101), 2, False),
        (torch.nn.Conv2d(3, 8, 3), 2, False),
    ],
)
def test_threads_wait_for_each_other_in_small_networks(
    net: torch.nn.Module, threads: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert waits_for_threads(net) == told


@pytest.mark.parametrize("seconds", [0.001, 30.0])
def test_a_slow_run_of_a_small_network_is_told_of_one_thread(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(FirstSteps, "seconds_per_step", lambda _: seconds)
    run(tmp_path, *ER, "--stop_after", "1")
    assert ("set OMP_NUM_THREADS=1" in capsys.readouterr().out) == (seconds > 1)


def opening(capsys: pytest.CaptureFixture) -> str:
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Device ")]
    return line


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--drop_last", "1", "--stop_after", "3"],
        ["--fitting_mode", "iters", "--n_iters", "5"],
        ["--label_perc", "0.3", "--validation", "0.2"],
        ["--debug_mode", "1"],
        ["--start_from", "2", "--task_free", "1"],
        ["--joint", "1"],
    ],
    ids=" ".join,
)
def test_the_steps_in_all_are_those_that_are_made(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    summary, _, _ = run(tmp_path, *ER, *flags)
    line = opening(capsys)
    assert (
        line.startswith(f"Device cpu, {torch.get_num_threads()} thread") and f" {summary['steps']} steps in all" in line
    )


def test_a_run_without_training_has_no_steps_and_forgets_nothing(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    _, _, directory = run(tmp_path / "evaluated", *ER, "--inference_only", "1")
    assert opening(capsys).endswith(" 0 steps in all")
    _, _, trained = run(tmp_path / "trained", *ER, "--stop_after", "2")
    shown = {name: [line[:4] for line in final_report(name).splitlines()] for name in (directory, trained)}
    assert {"FAA ", "FAIA"} <= set(shown[directory]) and not {"FF  ", "BWT "} & set(shown[directory])
    assert {"FAA ", "FAIA", "FF  ", "BWT "} <= set(shown[trained])


def test_the_step_of_a_stop_is_the_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Stopped in the second epoch of the second task: the bar has counted the first epoch, too."""
    observe, seen = Er.observe, []

    def stopping(model: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(model.current_task)
        if seen.count(1) == 12:
            signal.raise_signal(signal.SIGTERM)
        return observe(model, *args, **kwargs)

    monkeypatch.setattr(Er, "observe", stopping)
    with pytest.raises(Stopped):
        run(tmp_path, *ER)
    first = capsys.readouterr().out
    assert "Stopped at task 2, epoch 2, step 12; " in first
    monkeypatch.undo()
    summary, _, _ = run(tmp_path, *ER)
    second = capsys.readouterr().out
    assert " at task 2, epoch 2, step 12\n" in second
    assert f" {summary['steps']} steps in all, {len(seen)} of them already made" in second
