"""`make gpu` where there is no GPU: it says so, and everything but the figures of one is tried on the CPU."""

from __future__ import annotations

import json
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu, gpu_hours, gpu_steps
from benchmarks.gpu_steps import SYNCHRONISING, Effort, waits_of

SHORT = Effort(warm_up=1, rounds=2, steps=1)
SMALL = [f"--{name}={value}" for name, value in SHORT._asdict().items()] + ["--device=cpu", "--width=2"]


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three batches a task."""
    for train, count in ((True, 960), (False, 100)):
        monkeypatch.setitem(gpu_steps.IMAGES, train, {100: count})
    for dataset in (gpu_steps.SequentialCifar, gpu_steps.SequentialTinyImagenet):
        monkeypatch.setattr(dataset, "load_split", dataset.load_split)  # which is put back after the test


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_one_line(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu.main([])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1 and "no CUDA device" in line and "--device cpu" in line


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--device", "foo"], 2, "--device foo can't be used; give cpu, cuda or cuda:0"),
        (["--device", "cpu", "--width", "0"], 2, "--width: 0 is out of range: it must be at least 1"),
        (["--device", "cpu", "--steps", "0"], 2, "--steps: 0 is out of range: it must be at least 1"),
        (["--device", "cpu", "--rounds", "0"], 2, "--rounds: 0 is out of range: it must be at least 1"),
        (["--device", "cpu", "--warm_up", "-1"], 2, "--warm_up: -1 is out of range: it must be at least 0"),
        (["--device", "cpu", "sped"], 2, "unknown part 'sped'; valid are tests, methods, speed, hours"),
        (["--device", "cpu", "--output", "/dev/null/x.json"], 1, "cannot write /dev/null"),
        (["--device", "cpu", "--output", "/"], 2, "--output / is a folder; give a file"),
    ],
)
def test_wrong_usage_is_one_line_before_anything_is_measured(
    flags: list[str], code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(gpu, "environment", lambda: pytest.fail("it has begun"))
    with pytest.raises(SystemExit) as ended:
        gpu.main(flags)
    output = capsys.readouterr()
    assert ended.value.code == code and output.out == "" and output.err.count("\n") == 1
    assert words in output.err, output.err


def test_each_method_is_announced_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Ctrl-C during the third of them leaves the figures of two."""

    def trained(model: str, device: str) -> float:
        if model == "lwf":
            raise KeyboardInterrupt
        return 50.0

    monkeypatch.setattr(gpu, "trained", trained)
    monkeypatch.setattr(gpu, "measured", lambda *_: {"error": "not here"})
    monkeypatch.setattr(gpu, "use_random_images", lambda: None)
    monkeypatch.setattr(gpu, "get_model_entries", lambda: ["er", "joint", "sgd", "lwf", "der"])
    with pytest.raises(SystemExit) as ended:
        gpu.main(["methods", *SMALL, "--output", str(tmp_path / "gpu.json")])
    output = capsys.readouterr()
    assert ended.value.code == 130 and output.err == "stopped\n"
    assert output.out.splitlines() == ["[1/4] er", "[2/4] sgd", "[3/4] lwf"]
    found = json.loads((tmp_path / "gpu.json").read_text())["methods"]
    assert {name: figures["faa_on_cpu"] for name, figures in found.items()} == {"er": 50, "sgd": 50}


@pytest.mark.slow
def test_speed_is_measured_written_and_shown(
    tmp_path: Path, few_images: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(gpu, "ESTIMATORS", {name: gpu.ESTIMATORS[name] for name in ("closed",)})
    gpu.main(["speed", "--levels", "0", *SMALL, "--output", str(tmp_path / "gpu.json")])
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert (found["device"], found["width"], found["effort"]) == ("cpu", 2, SHORT._asdict())
    assert list(found["speed"]) == ["-O 0"]
    sides = found["speed"]["-O 0"]
    assert set(sides) == {"er", "closed", "er again"}
    for side in sides.values():
        low, high = side["steps_per_second_range"]
        assert 0 < low <= side["steps_per_second"] <= high
        assert side["peak_bytes"] is side["waits"] is None  # of a GPU
    assert sides["closed"]["end_of_task_seconds"] > sides["er"]["end_of_task_seconds"]  # its gradients
    rows = [line.split("|")[1:4] for line in capsys.readouterr().out.splitlines() if line.startswith("| `-O 0`")]
    assert [row[1].strip() for row in rows] == ["er", "closed", "er again"]
    assert float(rows[0][2]) == pytest.approx(sides["er"]["steps_per_second"], abs=0.06)


@pytest.mark.slow
def test_a_method_trains_and_one_that_fails_hinders_no_other(few_images: None) -> None:
    gpu_steps.use_random_images()
    found = gpu.methods(["er", "no_such_method"], "cpu", 2, SHORT)
    er, failed = found["er"], found["no_such_method"]
    assert er["faa_on_device"] == er["faa_on_cpu"] > 10 and er["steps_per_second"] > 0
    assert "no_such_method" in failed["error"] and "no_such_method" in failed["faa_on_device"]
    text = gpu.shown({"environment": {"gpu": "G", "torch": "2", "cuda": "13"}, "width": 2, "methods": found})
    assert "| `er`" in text and "UsageError" in text


def test_waits_are_counted_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def steps() -> Iterator[None]:
        for step in range(10):
            warnings.warn("something else", stacklevel=1)
            if step % 2:
                warnings.warn(f"{SYNCHRONISING} (Triggered internally)", stacklevel=1)
            yield

    assert list(waits_of(steps(), 6).values()) == [3]
    (place,) = waits_of(steps(), 2)
    assert place.startswith("tests/test_gpu_benchmark.py:")
    assert modes == ["warn", "default"] * 2


def test_hours_are_runs_times_hours_of_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """`loss` has 5 rows in one column, of two seeds each in this profile; SGD is made to fail."""
    asked: list[list[str]] = []

    def measure(argv: list[str]) -> dict[str, float]:
        asked.append(argv)
        if "--model=sgd" in argv:
            raise RuntimeError("no kernel\nfor it")
        return {"seconds": 1800.0}

    monkeypatch.setattr(gpu_hours, "measure", measure)
    found = gpu_hours.hours(["loss", "loss"], "smoke", "cuda:0", ["--num_filters=64"], lambda _: None)
    assert (found["runs"], found["hours"]) == (8, 4.0)
    (failed,) = found["failed"]
    assert (failed["row"], failed["runs"], failed["error"]) == ("SGD", 2, "RuntimeError: no kernel for it")
    assert len(asked) == 5 and all({"--device=cuda:0", "--num_filters=64"} <= set(argv) for argv in asked)
    shown = gpu.shown({"environment": {"gpu": "G", "torch": "2", "cuda": "13"}, "width": 64, "hours": found})
    assert "`--profile smoke`: 8 runs, about 4 hours of this device; not in it: 2 runs that failed." in shown


def test_the_outcome_of_the_numeric_tests_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(command: list[str], **_: Any) -> subprocess.CompletedProcess:
        assert command[command.index("-m", 2) :][:2] == ["-m", "numeric"]
        return subprocess.CompletedProcess(command, 1, "...F\nFAILED tests/a.py::b - x\n1 failed, 3 passed in 2.1s", "")

    monkeypatch.setattr(subprocess, "run", fake)
    found = gpu.numeric_tests()
    assert found == {"exit_code": 1, "outcome": "1 failed, 3 passed", "failed": ["FAILED tests/a.py::b - x"]}
