"""What was submitted to SLURM, and what its queue says about it.

Each submission has a folder with the logs of its jobs and a record of the runs that each job has. A job that has
left the queue while its run is unfinished has failed, or was killed or cancelled: no accounting is needed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.cells import Cell
from experiments.results.records import read_json
from experiments.running.cell_files import cells_root
from utils.errors import UserError
from utils.resume.files import atomic_write_text

RECORD = "submission.json"
UNKNOWN_JOB = "Invalid job id"  # what squeue says when asked only for a job that ended a while ago
STARTED = "Starting with JobEnvironment"  # submitit's first words
VERDICT = "error: *** JOB"  # … CANCELLED AT … DUE TO TIME LIMIT ***


@dataclass(frozen=True)
class Job:
    """One job of an array; `state` as squeue has it, such as PENDING, or None if it has left the queue."""

    name: str
    log: Path
    state: str | None
    reason: str = ""  # why it is pending

    @property
    def array(self) -> str:
        return self.name.partition("_")[0]

    @property
    def condition(self) -> str:
        """`pending, Priority`, or `running` for a run that the job has not reached yet."""
        return ", ".join([str(self.state).lower(), *([self.reason] if self.reason not in ("", "None") else [])])


def submissions_folder(cells: Sequence[Cell]) -> Path:
    return cells_root(cells[0].path) / "slurm"


def write_record(folder: Path, jobs: dict[str, tuple[Path, Sequence[Cell]]], flag: str | None = None) -> None:
    """For each job its log and its share of the runs."""
    content = {name: {"log": log.name, "runs": [_key(c.path) for c in cells]} for name, (log, cells) in jobs.items()}
    atomic_write_text(folder / RECORD, json.dumps({"jobs": content}) + "\n", flag=flag)


def jobs_of(cells: Sequence[Cell]) -> dict[Path, Job]:
    """By run directory, the job that each of these runs was last submitted in, if it ever was."""
    last: dict[str, tuple[str, Path]] = {}
    for record in sorted(submissions_folder(cells).glob(f"*/{RECORD}")) if cells else []:
        for name, job in (read_json(record) or {"jobs": {}})["jobs"].items():
            last |= dict.fromkeys(job["runs"], (name, record.with_name(job["log"])))
    found = {cell.path: last[_key(cell.path)] for cell in cells if _key(cell.path) in last}
    arrays = sorted({name.partition("_")[0] for name, _ in found.values()})
    queue = squeue(arrays) if arrays else {}
    return {path: Job(name, log, *queue.get(name, (None, ""))) for path, (name, log) in found.items()}


def _key(path: Path) -> str:
    return "/".join(path.parts[-3:])


def squeue(jobs: Sequence[str]) -> dict[str, tuple[str, str]]:
    """State and reason by the name of a job."""
    text = ask("squeue", "--noheader", "--array", f"--jobs={','.join(jobs)}", "--format=%i|%T|%r")
    lines = [line.strip().split("|", 2) for line in text.splitlines()]
    return {name: (state, reason) for name, state, reason in lines}


def require(program: str) -> None:
    if shutil.which(program) is None:
        raise UserError(f"{program} is not found: use a machine of the SLURM cluster from which jobs are submitted")


def ask(program: str, *arguments: str) -> str:
    """What a program of SLURM prints."""
    require(program)
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode and UNKNOWN_JOB not in done.stderr:
        raise UserError(f"{program} failed: {one_line(done.stderr) or f'exit code {done.returncode}'}")
    return done.stdout


def one_line(errors: str) -> str:
    return "; ".join(line.strip() for line in errors.splitlines() if line.strip())


def last_words(log: Path) -> str:
    """SLURM's verdict on a job, or else its last two lines: what our part of it said, and what SLURM said to that."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return "no log; it was cancelled before it began, or its node cannot write there"
    last_start = text.rpartition(STARTED)[2]  # a requeued job writes to the same log
    lines = [line.strip() for line in last_start.splitlines() if line.strip()]
    verdicts = [line for line in lines if VERDICT in line]
    return " | ".join(verdicts[-1:] or lines[-2:]) or "no output"
