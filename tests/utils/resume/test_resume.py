"""An interrupted run ends bit for bit where the uninterrupted one ends."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from helpers import ROOT, assert_same_run, run, run_directory
from method_helpers import RESNET

from models.er import Er
from utils.errors import UsageError, UserError
from utils.resume import store
from utils.run.session import Stopped

# 2 epochs of 9 or 10 steps (short last batches among them) in 5 tasks. `--n_iters` is for `--fitting_mode iters`.
FLAGS = ["--buffer_size", "50", "--n_epochs", "2", "--n_iters", "13", "--eval_epochs", "1"]
STEPS = 92


class Killed(Exception):
    """Stands for the end of the process at a step; nothing is saved on the way out."""


def interrupt(monkeypatch: pytest.MonkeyPatch, at_step: int) -> None:
    """Let the process "die" in the middle of step `at_step` (from 0), after the optimizer has moved the parameters."""
    steps = {"done": 0}
    observe = Er.observe

    def dying(self, *args, **kwargs):
        result = observe(self, *args, **kwargs)
        if steps["done"] == at_step:
            raise Killed
        steps["done"] += 1
        return result

    monkeypatch.setattr(Er, "observe", dying)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("straight")
    summary, _, directory = run(base, *FLAGS)
    assert summary["steps"] == STEPS
    return directory


# Middle of an epoch, last step of an epoch, first of the next, last step of a task, first of the next, and any others.
BOUNDARIES = [0, 3, 8, 9, 17, 18, *random.Random(0).sample(range(19, STEPS), 5)]


@pytest.mark.parametrize("step", BOUNDARIES)
def test_resume_is_exact(step: int, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last checkpoint is that of the step before, or up to three steps older."""
    saved = step if step % 2 else step // 4 * 4
    with monkeypatch.context() as patch:
        interrupt(patch, step)
        with pytest.raises(Killed):
            run(tmp_path, *FLAGS, "--checkpoint_every", str(saved))
    _, _, directory = run(tmp_path, *FLAGS)
    assert_same_run(directory, straight)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["--optimizer", "adam", "--lr", "0.001", "--lr_scheduler", "cosine", "--scheduler_mode", "iter"],
        ["--optim_mom", "0.9", "--optim_wd", "0.001", "--lr_scheduler", "multisteplr", "--lr_milestones", "1"],
        ["--fitting_mode", "iters"],
        ["--buffer_fill", "task_end", "--permute_classes", "1", "--validation", "0.2"],
        ["--task_free", "1"],
        ["--task_free", "1", "--lr_scheduler", "multisteplr", "--lr_milestones", "1", "--task_free_lr_restart", "1"],
        [*RESNET, "-O", "1"],
        ["--enable_other_metrics", "1", "--drop_last", "1"],
        ["--debug_mode", "1"],
        ["--start_from", "1", "--stop_after", "4"],
    ],
    ids=" ".join,
)
def test_resume_is_exact_in_every_mode(flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the first task and in the second or third; then all that a later task needs is in the last state."""
    flags = [*FLAGS, *flags, *([] if "--stop_after" in flags else ["--stop_after", "3"])]
    _, _, straight = run(tmp_path / "straight", *flags)
    for steps_until_killed in (11, 22):
        with monkeypatch.context() as patch:
            interrupt(patch, steps_until_killed)
            with pytest.raises(Killed):
                run(tmp_path / "broken", *flags, "--checkpoint_every", "3")
    _, _, resumed = run(tmp_path / "broken", *flags)
    assert_same_run(resumed, straight)


@pytest.mark.parametrize("model", ["sgd", "joint"])
def test_resume_is_exact_for_every_model(model: str, tmp_path: Path) -> None:
    flags = ["--n_epochs", "2"]
    _, _, straight = run(tmp_path / "straight", *flags, model=model)

    class StopAt:
        """A checkpoint function that ends the run once a few have been written."""

        left, save = 3, staticmethod(store.save)

    def save_and_stop(directory, state):
        StopAt.save(directory, state)
        StopAt.left -= 1
        if StopAt.left == 0:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "save", save_and_stop)
        with pytest.raises(Killed):
            run(tmp_path / "broken", *flags, "--checkpoint_every", "5", model=model)
    _, _, resumed = run(tmp_path / "broken", *flags, model=model)
    assert_same_run(resumed, straight)


def test_resume_is_exact_when_killed_during_evaluation(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        calls = {"n": 0}
        forward = Er.forward

        def dying(self, x):
            calls["n"] += 1
            if calls["n"] == 6:
                raise Killed
            return forward(self, x)

        patch.setattr(Er, "forward", dying)
        with pytest.raises(Killed):
            run(tmp_path, *FLAGS)
    _, _, directory = run(tmp_path, *FLAGS)
    assert_same_run(directory, straight)


def command(base: Path, *flags: str) -> list[str]:
    line = [sys.executable, str(ROOT / "main.py"), "--model", "er", "--dataset", "seq-digits", "--seed", "0"]
    line += ["--base_path", str(base)]
    return [*line, *FLAGS, *flags]


def with_threads(number: int) -> dict[str, str]:
    """The environment of a process that has so many by default."""
    return os.environ | {"OMP_NUM_THREADS": str(number)}


def start_and_wait_for_checkpoint(base: Path, *flags: str) -> subprocess.Popen:
    """With as many threads as the runs in this process have."""
    process = subprocess.Popen(
        command(base, *flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=with_threads(torch.get_num_threads()),
    )
    deadline = time.monotonic() + 600
    while not list(base.glob("results/*/*/*/checkpoint.pt")) and time.monotonic() < deadline:
        time.sleep(0.005)
    return process


@pytest.mark.slow
def test_sigkill_in_a_process_of_its_own(straight: Path, tmp_path: Path) -> None:
    process = start_and_wait_for_checkpoint(tmp_path, "--checkpoint_every", "2")
    time.sleep(0.05)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    threads = torch.get_num_threads()
    other = 2 if threads == 1 else 1  # never more than there are cores: the library may not start them
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, env=with_threads(other))
    assert done.returncode == 0, done.stderr
    assert "Resuming" in done.stdout and "FAIA" in done.stdout
    assert f"Using {threads} thread" in done.stdout
    assert_same_run(run_directory(tmp_path), straight)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_stops_at_a_step_boundary_with_a_checkpoint(name: str, straight: Path, tmp_path: Path) -> None:
    process = start_and_wait_for_checkpoint(tmp_path, "--checkpoint_every", "2")
    os.kill(process.pid, getattr(signal, name))
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 128 + getattr(signal, name), output
    assert "Traceback" not in output and "--resume " in output
    run(tmp_path, *FLAGS)
    assert_same_run(run_directory(tmp_path), straight)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR2])
def test_signals_inside_the_loop(number: int, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observe = Er.observe

    def signalled(self, *args, **kwargs):
        if self.task_iteration == 4 and self.current_task == 1:
            os.kill(os.getpid(), number)
        return observe(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Er, "observe", signalled)
        with pytest.raises(Stopped) as stopped:
            run(tmp_path, *FLAGS)
    assert stopped.value.code == 128 + number
    position = torch.load(run_directory(tmp_path) / "checkpoint.pt", weights_only=True)["position"]
    assert (position["task"], position["task_step"]) == (1, 5)
    run(tmp_path, *FLAGS)
    assert_same_run(run_directory(tmp_path), straight)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_a_resumed_run_has_the_threads_it_was_begun_with(
    two_threads: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """So its bits are those of a run with two threads, though the process has one."""
    flags = ["--buffer_size", "50", "--n_epochs", "2", "--stop_after", "2", "--batch_size", "100"]
    flags += ["--backbone", "resnet8", "--num_filters", "4"]
    _, _, undisturbed = run(tmp_path / "straight", *flags)
    with monkeypatch.context() as patch:
        interrupt(patch, 5)
        with pytest.raises(Killed):
            run(tmp_path / "broken", *flags, "--checkpoint_every", "2")
    torch.set_num_threads(1)
    used = set()
    observe = Er.observe
    monkeypatch.setattr(
        Er, "observe", lambda *args, **extra: used.add(torch.get_num_threads()) or observe(*args, **extra)
    )
    _, _, resumed = run(tmp_path / "broken", *flags)
    assert used == {2} and torch.get_num_threads() == 1
    assert "Using 2 threads, as when the run was begun, not 1\n" in capsys.readouterr().out
    assert_same_run(resumed, undisturbed)


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        ({"cpu_capability": "NEON", "threads": 1}, "begun on other hardware (cpu_capability: NEON → "),
        ({"threads": 1}, None),
        ({"threads": "many"}, None),
        ([], None),
        (None, None),
    ],
)
def test_another_processor_is_named_in_one_line(
    recorded: object,
    words: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    flags = ["--buffer_size", "50", "--n_epochs", "1", "--stop_after", "2"]
    with monkeypatch.context() as patch:
        interrupt(patch, 5)
        with pytest.raises(Killed):
            run(tmp_path, *flags, "--checkpoint_every", "2")
    file = run_directory(tmp_path) / "environment.json"
    file.write_text("damaged" if recorded is None else json.dumps(recorded))
    run(tmp_path, *flags)
    warnings = [r.getMessage() for r in caplog.records if "hardware" in r.getMessage()]
    assert len(warnings) == (words is not None) and (words or "") in "".join(warnings)


def test_resume_by_directory_and_config_drift(straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from utils.cli.parse import parse_args

    with monkeypatch.context() as patch:
        interrupt(patch, 30)
        with pytest.raises(Killed):
            run(tmp_path, *FLAGS, "--checkpoint_every", "4")
    directory = run_directory(tmp_path)
    args = parse_args(["--resume", str(directory)])
    assert (args.model, args.buffer_size, args.seed, args.n_epochs) == ("er", 50, 0, 2)
    with pytest.raises(UsageError, match=r"--model derpp: the run .* is of er; leave out --model to resume it"):
        parse_args(["--resume", str(directory), "--model", "derpp"])

    from main import initialize
    from utils.training import train

    with pytest.raises(UsageError, match=r"begun with other settings \(lr: 0.1 → 0.2, seed: 0 → 1\)"):
        train(*initialize(parse_args(["--resume", str(directory), "--lr", "0.2", "--seed", "1"])))
    train(*initialize(args))
    assert_same_run(directory, straight)


def test_a_damaged_newest_checkpoint_falls_back_to_the_previous(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        interrupt(patch, 30)
        with pytest.raises(Killed):
            run(tmp_path, *FLAGS, "--checkpoint_every", "4")
    newest = run_directory(tmp_path) / "checkpoint.pt"
    newest.write_bytes(newest.read_bytes()[:-1000])
    run(tmp_path, *FLAGS)
    assert "damaged" in caplog.text and "checkpoint.previous.pt" in caplog.text
    assert_same_run(run_directory(tmp_path), straight)


def test_two_processes_cannot_share_a_run(tmp_path: Path) -> None:
    from utils.cli.parse import parse_args
    from utils.run.directory import RunDirectory

    args = parse_args(["--model", "sgd", "--seed", "0", "--base_path", str(tmp_path)])
    with RunDirectory(args), pytest.raises(UserError, match="is in use by process"), RunDirectory(args):
        pass
    config = yaml.safe_load((run_directory(tmp_path) / "config.yaml").read_text())
    assert config["args"]["seed"] == 0 and config["config"]["lr"] == 0.1


def test_a_checkpoint_of_another_version_is_refused_in_one_line(tmp_path: Path) -> None:
    _, _, directory = run(tmp_path, *FLAGS)
    state = store.load(directory)
    assert state is not None
    del state["schedule"]
    store.save(directory, state)
    (directory / "summary.json").unlink()
    with pytest.raises(UserError, match=r"another version of this code .* \(it lacks schedule\); --overwrite 1"):
        run(tmp_path, *FLAGS)
