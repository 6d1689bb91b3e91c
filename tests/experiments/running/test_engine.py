"""Real runs on the digits: cells that fail, processes that are stopped or killed, leases that are lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from experiment_helpers import DIGITS, assert_same_results, attempts, begun, expanded, finish, wait_for
from helpers import ROOT

from experiments.cells import Cell
from experiments.results.records import read_summary
from experiments.running.cell_files import cell_directory, log_file, read_failure, write_failure
from experiments.running.engine import Engine
from experiments.running.leases import Lease
from experiments.running.processes import threads_per_process
from utils.resume.files import RunLock, is_locked

LONG = {
    "flags": DIGITS | {"n_epochs": 10, "checkpoint_every": 20},
    "rows": {"ER": {"model": "er"}, "DGC-ER": {"model": "dgc_er", "dgc_alpha": 0.5}},
    "seeds": 2,
}


def process_of(cell: Cell) -> int | None:
    """That works on it, if there is one."""
    try:
        number = int((cell.path / "run.lock").read_text().split()[1])
        os.kill(number, 0)
    except (FileNotFoundError, IndexError, ProcessLookupError):
        return None
    return number


class Command:
    """`reproduce.py run` of a grid, in a process of its own."""

    def __init__(self, tmp_path: Path):
        place = ["--grid", tmp_path / "grid.yaml", "--base_path", tmp_path / "data"]
        self.process = subprocess.Popen(
            [sys.executable, "reproduce.py", "run", *place, "--jobs", "2"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def press_control_c(self) -> tuple[int, str]:
        """A terminal sends the signal to the whole group of processes."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self._end()

    def signal_all(self, number: int, cells: list[Cell]) -> tuple[int, str]:
        """As a scheduler does, to every process of a job, and not only once."""
        for _ in range(2):
            os.killpg(self.process.pid, number)
            for pid in filter(None, map(process_of, cells)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        return self._end()

    def kill(self) -> int:
        self.process.kill()
        return self._end()[0]

    def _end(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=120)
        return self.process.returncode, output


@pytest.mark.slow
def test_stopped_or_killed_every_cell_ends_once_with_the_results_of_an_undisturbed_run(tmp_path: Path) -> None:
    cells = expanded(tmp_path, **LONG).cells
    assert len(cells) == 4

    first = Command(tmp_path)
    wait_for(lambda: any(map(begun, cells)))
    assert not any(os.getpgid(number) == first.process.pid for cell in cells if (number := process_of(cell)))
    code, output = first.press_control_c()
    assert code == 128 + signal.SIGINT and "Stopped. The same command continues." in output
    assert not any(map(process_of, cells))  # no process is left behind
    assert not any("without saving" in log_file(cell.path).read_text() for cell in cells if begun(cell))

    second = Command(tmp_path)
    wait_for(lambda: any(begun(cell) and process_of(cell) for cell in cells))
    victim = next(cell for cell in cells if begun(cell) and process_of(cell))
    number, before = process_of(victim), attempts(victim)
    assert number is not None
    os.kill(number, signal.SIGKILL)
    wait_for(lambda: attempts(victim) > before)  # the same command tries it again
    assert second.kill() == -signal.SIGKILL and not all(read_summary(cell.path) for cell in cells)
    wait_for(lambda: not any(map(process_of, cells)))  # its cells notice and stop
    assert begun(victim)

    outcome = Engine(cells, ["cpu"], jobs=2).run()
    assert (outcome.exit_code, outcome.failed, len(outcome.done)) == (0, {}, 4)
    for cell in cells:
        log = log_file(cell.path).read_text()
        assert log.count("final average accuracy") == 1 and "This run is finished" not in log  # it ended once
        assert list(cell_directory(cell.path).iterdir()) == [log_file(cell.path)]
    assert_same_results(cells, tmp_path / "undisturbed")


@pytest.mark.slow
def test_a_scheduler_signals_every_process_and_the_runs_save(tmp_path: Path) -> None:
    cells = expanded(tmp_path, **LONG | {"flags": DIGITS | {"n_epochs": 500, "checkpoint_every": 20}, "seeds": 1}).cells
    command = Command(tmp_path)
    wait_for(lambda: all(begun(cell) and process_of(cell) for cell in cells), seconds=600)
    code, output = command.signal_all(signal.SIGUSR2, cells)
    assert code == 128 + signal.SIGUSR2 and "Stopped. The same command continues." in output
    assert not any(map(process_of, cells))  # they were waited for
    for cell in cells:
        log = log_file(cell.path).read_text()
        assert "Stopped at task" in log and "without saving" not in log


def test_a_failing_cell_stops_no_other_and_is_tried_again_by_the_next_command(
    tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    rows = {"bad": {"model": "er", "drop_last": 1, "batch_size": 5000}, "good": {"model": "er"}}
    bad, good = expanded(tmp_path, flags=DIGITS, rows=rows).cells
    outcome = Engine([bad, good], ["cpu"]).run()
    reason = (
        "--drop_last 1 with --batch_size 5000 leaves no batch of the 288 images of task 1; use a smaller --batch_size"
    )
    assert outcome.exit_code == 1 and outcome.done == [good]
    assert list(outcome.failed.values()) == [(bad, reason)] and read_failure(bad.path) == reason
    assert f"error: {reason}" in log_file(bad.path).read_text()
    assert "bad, seed 0: failed: --drop_last 1" in capfd.readouterr().out

    again = Engine([bad, good], ["cpu"]).run()
    assert (again.exit_code, again.done, list(again.failed)) == (1, [good], [bad.path])
    assert (attempts(bad), attempts(good)) == (2, 1)


@pytest.mark.slow
def test_who_loses_a_lease_lets_go_of_the_cell(tmp_path: Path) -> None:
    """Another machine takes it over in the middle, and dies at once; when its lease is stale, we have it again."""
    (cell,) = expanded(tmp_path, **LONG | {"rows": {"ER": {"model": "er"}}, "seeds": 1}).cells

    def another_machine() -> None:
        wait_for(lambda: begun(cell))
        (cell_directory(cell.path) / "lease.1").write_text("1 another-machine pid:[1] abc")

    thread = threading.Thread(target=another_machine)
    thread.start()
    outcome = Engine([cell], ["cpu"], stale_seconds=3).run()
    thread.join()
    assert (outcome.exit_code, attempts(cell)) == (0, 2)
    assert_same_results([cell], tmp_path / "undisturbed")


def test_the_lease_of_a_run_that_is_finished_and_not_yet_over_is_its_owners(tmp_path: Path) -> None:
    """It may still be sending its last to wandb: without its lease its engine would kill it."""
    (cell,) = expanded(tmp_path, flags=DIGITS, rows={"ER": {"model": "er"}}).cells
    finish(cell, 90, (40, 60))
    path = cell_directory(cell.path) / "lease.0"
    path.parent.mkdir(parents=True)
    path.write_text("1 another-machine pid:[1] abc")
    assert Engine([cell], ["cpu"]).run().done == [cell] and Lease(path, "").beat()
    os.utime(path, (0, 0))
    assert Engine([cell], ["cpu"]).run().done == [cell] and not path.exists()


def test_what_failed_in_another_process_meanwhile_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = expanded(tmp_path, flags=DIGITS, rows={"ER": {"model": "er"}}, seeds=2).cells
    write_failure(old.path, "yesterday")
    engine = Engine([old, new], ["cpu"], jobs=2)
    write_failure(new.path, "a minute ago")
    started: list[Cell] = []
    monkeypatch.setattr(Engine, "start", lambda self, cell, lease, slot: started.append(cell))
    outcome = engine.run()
    assert started == [old] and list(outcome.failed.values()) == [(new, "a minute ago")]


def test_a_run_that_is_in_use_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,) = expanded(tmp_path, flags=DIGITS, rows={"ER": {"model": "er"}}).cells
    lock = RunLock(cell.path / "run.lock")
    monkeypatch.setattr("experiments.running.engine.OTHERS_SECONDS", 0.0)
    started: list[bool] = []
    monkeypatch.setattr(
        Engine, "start", lambda self, cell, lease, slot: started.append(is_locked(cell.path / "run.lock"))
    )
    threading.Timer(1.0, lock.release).start()
    Engine([cell], ["cpu"]).run()
    assert started == [False]


def test_the_fork_server_has_torch_loaded_wherever_the_command_is_given_and_outlives_signals(tmp_path: Path) -> None:
    """Asked in a process that it has forked, which inherits the mask of signals, too."""
    question = """
import os, signal, sys
mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
blocked = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP}
slow = {'experiments.running.processes', 'torch._dynamo', 'torchvision.transforms'}
sender.send((slow <= set(sys.modules), os.environ['OMP_NUM_THREADS'], mask == blocked))
"""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import multiprocessing
from experiments.running.processes import start_fork_server
if __name__ == "__main__":
    start_fork_server(3, [])
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    context.Process(target=exec, args=({question!r}, {{"sender": sender}})).start()
    print(receiver.recv())
"""
    (tmp_path / "ask.py").write_text(code)
    done = subprocess.run([sys.executable, "ask.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "(True, '3', True)\n", done.stderr


def test_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_per_process(1) == threads_per_process(64) == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert [threads_per_process(n) for n in (1, 3, 8, 20)] == [8, 2, 1, 1]
