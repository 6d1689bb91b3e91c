"""Submit cells as a job array. Each of its jobs is an `Engine` for a share of them, stopped and requeued in time.

submitit writes the batch file, starts our callable on the node, and requeues it on a signal: before the time limit, or
when the job is preempted. While the engine runs, the signals are the engine's; it lets its runs save, and only then
submitit hears of them. A job stores command lines only: the progress of a run is in its directory.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.cells import Cell, distinct_runs, parsed_cell
from experiments.running.cell_files import failure_time, forget_failure, read_failure
from experiments.running.engine import Engine
from experiments.running.leases import STALE_SECONDS
from experiments.running.plan import unfinished
from experiments.running.processes import available_devices
from experiments.running.slurm.queue import Job, ask, jobs_of, one_line, require, submissions_folder, write_record
from experiments.running.slurm.sbatch import parameters
from utils.errors import UserError
from utils.resume.files import one_line_errors, results_flag
from utils.resume.signals import blocked_signals
from utils.status import say

DEFAULT_ARRAY_SIZE = 1001  # SLURM's
PAUSES = (2.0, 4.0, 8.0)  # seconds, if squeue fails: a controller that is busy must not cost the requeue
MOST_TIMEOUTS = 100  # per job; a run that needs more makes hardly any progress
# The job's own predecessor may hold a run after its node has died: its lease will be stale by then.
PATIENCE = STALE_SECONDS + 20


def require_slurm() -> None:
    load_submitit()
    require("sbatch")


def load_submitit() -> ModuleType:
    try:
        import submitit
    except ImportError:
        raise UserError("--engine slurm needs submitit, which is not installed: pip install submitit") from None
    return submitit


class Share:
    """What a job of the array runs."""

    def __init__(self, cells: Sequence[Cell]):
        self.cells = [(cell.row, cell.column, cell.seed, cell.argv) for cell in cells]

    def __call__(self) -> None:
        try:
            cells = [parsed_cell(*cell) for cell in self.cells]
            outcome = Engine(cells, available_devices(), patience=PATIENCE).run()
            if outcome.stopped and should_continue():
                _hand_on_to_submitit()
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(error.exit_code)
        if outcome.exit_code:
            sys.exit(outcome.exit_code)

    def checkpoint(self) -> Any:
        """What submitit starts after a requeue."""
        return load_submitit().helpers.DelayedSubmission(self)


def should_continue() -> bool:
    """Whether SLURM believes that this job is running. If not, it is cancelled (and a requeue would undo that) or
    requeued already."""
    with blocked_signals():  # those that SLURM sends to all processes must not end squeue
        for pause in PAUSES:
            with contextlib.suppress(UserError):
                return _state() == "RUNNING"
            time.sleep(pause)
        return _state() == "RUNNING"


def _state() -> str:
    return ask("squeue", "--noheader", f"--jobs={os.environ['SLURM_JOB_ID']}", "--format=%T").strip()


def _hand_on_to_submitit() -> None:
    """The handler, which is its again, saves what `checkpoint` returns, requeues the job and exits."""
    signal.raise_signal(getattr(signal, f"SIG{load_submitit().JobEnvironment().USR_SIG}"))


def submit(cells: Sequence[Cell], args: Namespace) -> None:
    """All that is neither done nor in the queue already, in the order in which an engine takes it."""
    limit = _most_jobs()
    runs, left = distinct_runs(cells), unfinished(cells)
    jobs = jobs_of([cell for cell in left if read_failure(cell.path) is None])  # failed: its job is through with it
    queued = {path: job for path, job in jobs.items() if job.state is not None}
    new = sorted((cell for cell in left if cell.path not in queued), key=lambda cell: cell.seed)
    say(f"{len(runs) - len(left)} of {len(runs)} runs are done{_in_queue(queued.values())}")
    if not new:
        say("There is nothing to submit.")
        return
    n_jobs = min(len(new), args.array_jobs or len(new), limit)
    shares = [new[i::n_jobs] for i in range(n_jobs)]
    array, folder = _submit_or_nothing(shares, parameters(args, n_jobs))
    at_a_time = f", at most {args.jobs} at a time" if args.jobs else ""
    say(f"Job array {array} is submitted: {len(new)} runs in {n_jobs} jobs{at_a_time}. Their logs are in {folder}")


def _most_jobs() -> int:
    """The largest number of jobs in an array here."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config"), re.M)
    return max(1, int(found[1])) if found else DEFAULT_ARRAY_SIZE


def _in_queue(jobs: Collection[Job]) -> str:
    arrays = ", ".join(sorted({job.array for job in jobs}))
    return f", and {len(jobs)} are in the queue (job array {arrays})" if jobs else ""


def _submit_or_nothing(shares: Sequence[Sequence[Cell]], options: dict[str, Any]) -> tuple[str, Path]:
    """The number of the job, and its folder. A Ctrl-C waits until `sbatch` is through, and then undoes what it did."""
    name = f"reproduce-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
    folder = submissions_folder(shares[0]) / name
    try:
        with blocked_signals():
            return _submit(shares, options | {"job_name": name}, folder), folder
    except BaseException as error:
        with blocked_signals():
            _withdraw(name, folder)
        if isinstance(error, KeyboardInterrupt):
            say("Interrupted: nothing stays submitted.")
        raise


def _withdraw(name: str, folder: Path) -> None:
    """By name: if `sbatch` was interrupted, it did not say whether it made a job, and which."""
    with contextlib.suppress(UserError):
        ask("scancel", f"--name={name}")
    shutil.rmtree(folder, ignore_errors=True)


def _submit(shares: Sequence[Sequence[Cell]], options: dict[str, Any], folder: Path) -> str:
    old_failures = {cell.path: failure_time(cell.path) for share in shares for cell in share}
    flag = results_flag(shares[0][0].args.results_path)
    with one_line_errors(folder, flag):
        folder.mkdir(parents=True)
    executor = load_submitit().SlurmExecutor(folder, max_num_timeout=MOST_TIMEOUTS)
    executor.update_parameters(**options)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what it raises
            jobs = executor.submit_array([Share(share) for share in shares])
    except RuntimeError as error:
        raise UserError(f"sbatch refused the job: {one_line(str(error))}") from error
    logs = [job.paths.stdout for job in jobs]
    names = [job.job_id for job in jobs]
    write_record(folder, dict(zip(names, zip(logs, shares, strict=True), strict=True)), flag)
    for path, failed_at in old_failures.items():
        if failure_time(path) == failed_at:  # or else it was tried meanwhile
            forget_failure(path)
    return str(names[0]).partition("_")[0]
