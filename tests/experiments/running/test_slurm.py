"""Job arrays: on a real SLURM of one node if there are the packages, and the words about it in any case."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from experiment_helpers import DIGITS, assert_same_results, attempts, begun, call, expanded, wait_for, write_grid
from slurm_node import slurm_node, why_not

from experiments import cli
from experiments.cells import Cell
from experiments.running.cell_files import cell_directory, log_file, read_failure, write_failure
from experiments.running.engine import Engine
from experiments.running.processes import threads_per_process
from experiments.running.slurm.engine import should_continue
from experiments.running.slurm.queue import jobs_of, last_words, submissions_folder, write_record
from experiments.running.slurm.sbatch import parameters
from experiments.running.status import status
from utils.errors import UserError

HAS_SUBMITIT = importlib.util.find_spec("submitit") is not None
NO_SLURM = why_not() if HAS_SUBMITIT else "submitit is not installed"
needs_submitit = pytest.mark.skipif(not HAS_SUBMITIT, reason="submitit is not installed")
needs_slurm = pytest.mark.skipif(NO_SLURM is not None, reason=str(NO_SLURM))

SECONDS = 600  # for what takes ten on an idle machine
SLURM = ["--engine", "slurm", "--time", "30"]
ROWS = {"ER": {"model": "er"}}


def place(tmp_path: Path) -> list[str | Path]:
    return ["--grid", tmp_path / "grid.yaml", "--base_path", tmp_path / "data"]


# -- a real SLURM ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slurm() -> Iterator[None]:
    with slurm_node() as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def submit(tmp_path: Path, *flags: str) -> None:
    assert call("run", *place(tmp_path), *SLURM, *flags) == 0


def wait_until_out_of_the_queue(*cells: Cell) -> None:
    wait_for(lambda: all(job.state is None for job in jobs_of(cells).values()), SECONDS, pause=0.5)


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kill_processes(name: str) -> None:
    """All of a job at once; `scancel --signal=KILL` would send a SIGTERM first."""
    job = output("squeue", "--noheader", f"--jobs={name}", "--format=%A").strip()
    listed = ("scontrol", "listpids")  # exits with 1 if a step, of any job, is just ending
    for pid, of_job, step, *_ in map(
        str.split, subprocess.run(listed, capture_output=True, text=True).stdout.splitlines()
    ):
        if (of_job, step) == (job, "0"):
            os.kill(int(pid), signal.SIGKILL)


def act_when_begun(actions: dict[Cell, Callable[[str], object]]) -> bool:
    """On the jobs of cells, each once, whichever is first; whether that was the last."""
    for cell in [cell for cell in actions if begun(cell)]:
        actions.pop(cell)(jobs_of([cell])[cell.path].name)
    return not actions


@pytest.mark.slurm
@needs_slurm
def test_an_array_does_every_cell_once_whatever_happens_to_its_jobs(
    slurm: None, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """One job requeues itself. Two end, and the next command submits their cells again, as a share of one job."""
    expansion = expanded(tmp_path, flags=DIGITS | {"n_epochs": 20, "checkpoint_every": 20}, rows=ROWS, seeds=4)
    _, signalled, killed, cancelled = cells = expansion.cells
    submit(tmp_path)
    assert "Job array 1 is submitted: 4 runs in 4 jobs." in capsys.readouterr().out
    submit(tmp_path)
    printed = capsys.readouterr().out
    assert "4 are in the queue (job array 1)" in printed and "There is nothing to submit." in printed
    actions: dict[Cell, Callable[[str], object]] = {
        signalled: lambda name: output("scancel", "--signal=USR2", name),
        killed: kill_processes,
        cancelled: lambda name: output("scancel", name),
    }
    wait_for(lambda: act_when_begun(actions), SECONDS)
    wait_until_out_of_the_queue(killed, cancelled)
    text = status([expansion])
    assert re.search(
        r"^failed: ER, seed 2: its SLURM job 1_2 ended: .*Killed.*\n        /.*/1_2_0_log.out$", text, re.M
    )
    assert re.search(r"^failed: ER, seed 3: its SLURM job 1_3 ended: .*CANCELLED", text, re.M)

    submit(tmp_path, "--array_jobs", "1")
    assert "2 runs in 1 jobs." in capsys.readouterr().out
    wait_until_out_of_the_queue(*cells)
    assert [attempts(cell) for cell in cells] == [1, 2, 2, 2]
    for cell in cells:
        log = log_file(cell.path).read_text()
        assert log.count("final average accuracy") == 1 and "This run is finished" not in log  # it ended once
        assert log.count("Stopped at task") == (cell in (signalled, cancelled)) and "without saving" not in log
    assert_same_results(cells, tmp_path / "undisturbed")


@pytest.mark.slurm
@needs_slurm
def test_what_sbatch_refuses_is_one_line(slurm: None, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (cell,) = expanded(tmp_path, flags=DIGITS, rows=ROWS).cells
    write_failure(cell.path, "yesterday")
    assert call("run", *place(tmp_path), *SLURM, "--partition", "nowhere") == 1
    errors = capsys.readouterr().err
    assert errors.startswith("error: sbatch refused the job: ") and errors.count("\n") == 1
    assert "nowhere" in errors and read_failure(cell.path) == "yesterday"
    assert list(submissions_folder([cell]).iterdir()) == []


# -- without one ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--time", "60"], ["--time", "--engine slurm"]),
        (["--sbatch", "mem=4G"], ["--sbatch", "--engine slurm"]),
        (["--engine", "slurm"], ["--time", "4:00:00"]),
        (["--engine", "slurm", "--time", "2"], ["--time 2", "5 minutes"]),
        (["--engine", "slurm", "--time", "an hour"], ["--time an hour", "minutes"]),
        (["--engine", "slurm", "--time", "1-"], ["--time 1-"]),
        ([*SLURM, "--devices", "cpu"], ["--devices", "gpus-per-node"]),
        ([*SLURM, "--array_jobs", "0"], ["--array_jobs", "at least 1"]),
        ([*SLURM, "--sbatch", "array=0-3"], ["array=0-3", "--jobs"]),
        ([*SLURM, "--sbatch", "-c"], ["--sbatch"]),
        ([*SLURM, "--sbatch", "c 4"], ["--sbatch c 4", "NAME=VALUE"]),
        (["--engine", "pbs"], ["pbs", "slurm"]),
    ],
)
def test_wrong_flags_are_refused_in_one_line(
    tmp_path: Path, flags: list[str], words: list[str], capsys: pytest.CaptureFixture
) -> None:
    write_grid(tmp_path / "grid.yaml", flags=DIGITS, rows=ROWS)
    assert call("run", *place(tmp_path), *flags) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ") and errors.count("\n") == 1
    assert all(word in errors for word in words), errors


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("5:00", 5), ("4:00:00", 240), ("4:00:01", 241), ("1-12", 2160), ("1-12:30", 2190), ("0-0:10:5", 11)],
)
def test_time_is_given_as_to_sbatch(text: str, minutes: int) -> None:
    assert cli.parser().parse_args(["run", "--time", text]).time == minutes


def test_what_sbatch_is_told() -> None:
    flags = ["--partition", "gpu", "--sbatch", "cpus-per-task=4", "mem=16G", "exclusive"]
    args = cli.parser().parse_args(["run", *SLURM, *flags])
    told = parameters(args, n_jobs=7)
    assert (told["partition"], told["time"], told["array_parallelism"]) == ("gpu", 30, 7)
    more = {"requeue": True, "cpus-per-task": "4", "mem": "16G", "exclusive": True}
    assert told["additional_parameters"] == more and told["srun_args"] == ["--cpus-per-task=4"]
    args.jobs = 2
    assert parameters(args, n_jobs=7)["array_parallelism"] == 2


def test_without_submitit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    write_grid(tmp_path / "grid.yaml", flags=DIGITS, rows=ROWS)
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert call("run", *place(tmp_path), *SLURM) == 1
    assert capsys.readouterr().err == (
        "error: --engine slurm needs submitit, which is not installed: pip install submitit\n"
    )


Programs = Callable[..., Path]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Stand-ins for SLURM's programs, each a script; returns the folder, in which they run."""

    def write(**scripts: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        for name, script in ({"srun": "", "scontrol": "echo 'MaxArraySize            = 2'"} | scripts).items():
            (folder / name).write_text(f"#!/bin/sh\ncd {folder}\n{script}\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
        return folder

    return write


@needs_submitit
def test_without_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    write_grid(tmp_path / "grid.yaml", flags=DIGITS, rows=ROWS)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert call("run", *place(tmp_path), *SLURM) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("error: sbatch is not found") and errors.count("\n") == 1


@needs_submitit
def test_a_controller_that_does_not_answer(tmp_path: Path, programs: Programs, capsys: pytest.CaptureFixture) -> None:
    write_grid(tmp_path / "grid.yaml", flags=DIGITS, rows=ROWS)
    programs(sbatch="exit 1", scontrol="echo 'Unable to contact slurm controller' >&2; exit 1")
    assert call("run", *place(tmp_path), *SLURM) == 1
    assert capsys.readouterr().err == "error: scontrol failed: Unable to contact slurm controller\n"


@needs_submitit
def test_ctrl_c_while_submitting_cancels_what_was_submitted(
    tmp_path: Path, programs: Programs, capsys: pytest.CaptureFixture
) -> None:
    """The terminal sends the signal to both, and `sbatch` must be left to say which job it made.

    torch has threads, one of which may be hit by the signal while the main thread holds it off.
    """
    ready = threading.Event()
    threading.Thread(target=ready.wait, daemon=True).start()
    (cell,) = expanded(tmp_path, flags=DIGITS, rows=ROWS).cells
    folder = programs(
        sbatch="kill -INT $PPID; kill -INT $$; echo 'Submitted batch job 7'", scancel='echo "$@" > cancelled'
    )
    assert call("run", *place(tmp_path), *SLURM) == 130
    ready.set()
    assert re.fullmatch(r"--name=reproduce-[0-9a-f-]+\n", (folder / "cancelled").read_text())
    assert "Interrupted: nothing stays submitted." in capsys.readouterr().out
    assert list(submissions_folder([cell]).iterdir()) == []


@needs_submitit
def test_what_failed_is_submitted_again_and_no_more_tasks_than_an_array_may_have(
    tmp_path: Path, programs: Programs, capsys: pytest.CaptureFixture
) -> None:
    cells = expanded(tmp_path, flags=DIGITS, rows=ROWS, seeds=5).cells
    write_failure(cells[3].path, "yesterday")
    folder = programs(
        sbatch="cp $1 batch; echo 'Submitted batch job 7'",
        squeue="echo '7_0|PENDING|Priority'; echo '7_1|PENDING|Priority'",
    )
    assert call("run", *place(tmp_path), *SLURM) == 0
    printed = capsys.readouterr().out
    assert "5 runs in 2 jobs." in printed
    batch = (folder / "batch").read_text()
    assert "#SBATCH --array=0-1%2" in batch and "#SBATCH --requeue" in batch and "#SBATCH --signal=USR2@120" in batch
    names = [jobs_of(cells)[cell.path].name for cell in cells]
    assert names == ["7_0", "7_1", "7_0", "7_1", "7_0"]
    assert read_failure(cells[3].path) is None

    write_failure(cells[3].path, "in its new job, which is running")
    assert call("run", *place(tmp_path), *SLURM) == 0
    assert "4 are in the queue (job array 7)" in capsys.readouterr().out
    assert "--array" not in (folder / "batch").read_text()


def test_status_of_what_is_queued_and_of_what_ended_without_a_word(
    tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    expansion = expanded(tmp_path, flags=DIGITS, rows=ROWS, seeds=4)
    cells = expansion.cells
    folder = submissions_folder(cells) / "1"
    write_record(folder, {f"7_{i}": (Path(f"7_{i}.out"), [cell]) for i, cell in enumerate(cells[:3])})
    requeued = "error: *** JOB 7 ON x CANCELLED AT y DUE TO JOB REQUEUE ***"
    (folder / "7_1.out").write_text(f"{requeued}\nStarting with JobEnvironment\nfirst\na\nb\n")
    squeue = programs(squeue="echo '7_0|PENDING|Resources'") / "squeue"
    text = status([expansion])
    assert "| grid | 0    | 0       | 1      | 2      | 1       |" in text
    assert "queued: 1 in SLURM job array 7 (pending, Resources)" in text
    assert f"failed: ER, seed 1: its SLURM job 7_1 ended: a | b\n        {folder / '7_1.out'}" in text
    assert "failed: ER, seed 2: its SLURM job 7_2 ended: no log" in text

    squeue.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert "failed: ER, seed 0" in status([expansion])
    monkeypatch.setenv("PATH", str(tmp_path))
    text = status([expansion])
    assert "Which of the waiting runs are queued is unknown: squeue is not found" in text and "failed: ER" not in text


def test_a_job_asks_again_whether_it_should_continue(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that does not answer at the time limit must not end the job for good."""
    monkeypatch.setattr("experiments.running.slurm.engine.PAUSES", (0.0, 0.0))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    folder = programs(squeue="echo >> asked; [ $(wc -l < asked) -ge 3 ] && echo RUNNING || exit 1")
    assert should_continue()
    (folder / "squeue").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(UserError, match="squeue failed"):
        should_continue()


def test_slurms_verdict_is_a_jobs_last_word(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x\nslurmstepd: error: *** JOB 7 ON n CANCELLED DUE TO TIME LIMIT ***\nsrun: z\n")
    assert last_words(tmp_path / "log") == "slurmstepd: error: *** JOB 7 ON n CANCELLED DUE TO TIME LIMIT ***"


def test_a_job_leaves_to_others_what_they_have(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    (cell,) = expanded(tmp_path, flags=DIGITS, rows=ROWS).cells
    cell_directory(cell.path).mkdir(parents=True)
    (cell_directory(cell.path) / "lease.0").write_text("1 another-machine pid:[1] abc")
    outcome = Engine([cell], ["cpu"], patience=1).run()
    assert (outcome.exit_code, outcome.done, outcome.failed) == (0, [], {})
    assert "1 runs are still held by other processes" in capfd.readouterr().out


def test_a_job_uses_no_more_cores_than_it_was_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "4")
    assert [threads_per_process(n) for n in (1, 2, 8)] == [4, 2, 1]
