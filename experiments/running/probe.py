"""How long a run would take here, measured by a few steps of its second task, where replay and calibration act."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

import torch

from main import initialize
from utils.cli.parse import parse_args
from utils.errors import UserError
from utils.resume.signals import StopSignals, accept_signals
from utils.resume.store import NEWEST
from utils.run.directory import RunDirectory
from utils.run.identity import changed
from utils.run.pace import steps_of
from utils.run.session import Session
from utils.training import Trainer

FIRST_TASK_STEPS = 3
LEAST_STEPS, LEAST_SECONDS = 3, 0.3
# Not counted: measurements and evaluations besides training. A probe is not sent to wandb.
LEFT_OUT = {"dgc_diagnostics": 0, "loss_diagnostics": None, "eval_epochs": None, "nowand": 1}


def measure(argv: list[str]) -> dict[str, float]:
    """Seconds of a whole run and bytes of its checkpoints."""
    with beginning(argv) as trainer:
        return _estimate(trainer)


@contextmanager
def beginning(argv: list[str]) -> Iterator[Trainer]:
    """A run, in a temporary directory, before its first step; to be made within the trainer's guard."""
    with tempfile.TemporaryDirectory() as place:
        args = changed(parse_args(argv), results_path=place, **LEFT_OUT)
        built = initialize(args)  # before the directory is held, as in `main`: it may have to fetch the dataset
        with RunDirectory(args) as directory:
            yield Trainer(Session(*built, directory, StopSignals()))


def to_second_task(trainer: Trainer) -> float:
    """A few steps of the first task, then what ends it and begins the second; the seconds that the latter takes."""
    trainer.begin_task()
    if trainer.session.end - trainer.position.task < 2:  # joint training has one task
        return 0.0
    for _ in islice(trainer.steps(), FIRST_TASK_STEPS):
        pass
    seconds = _seconds(trainer, trainer.end_task)
    trainer.position.end_task()
    return seconds + _seconds(trainer, trainer.begin_task)


def _estimate(trainer: Trainer) -> dict[str, float]:
    session, args = trainer.session, trainer.args
    first, n_tasks = session.position.task, session.end - session.position.task
    with trainer.guard:
        between = to_second_task(trainer)
        per_step = _seconds_per_step(trainer)
    steps = steps_of(session, range(first, session.end))
    if steps >= sys.maxsize:
        raise UserError(f"{args.dataset} does not say how many batches a task has")
    per_test_set = _seconds(trainer, trainer.evaluator.seen_tasks) / len(trainer.dataset.test_loaders)
    evaluations = n_tasks * (n_tasks + 1) / 2
    session.checkpoint()
    return {
        "seconds": steps * per_step + n_tasks * between + evaluations * per_test_set,
        "bytes": 2 * (session.directory.path / NEWEST).stat().st_size,  # the newest and the one before it
    }


def _seconds_per_step(trainer: Trainer) -> float:
    """The first step is left out where there are others: it allocates what they reuse."""
    begun, times = time.perf_counter(), []
    for _ in trainer.steps():
        wait(trainer)
        times.append(time.perf_counter() - begun)
        if len(times) > LEAST_STEPS and times[-1] - times[0] >= LEAST_SECONDS:
            break
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else sum(times)


def _seconds(trainer: Trainer, action: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    action()
    wait(trainer)
    return time.perf_counter() - begun


def wait(trainer: Trainer) -> None:
    """Until all that was asked of a GPU is done, so that a clock shows it."""
    if trainer.model.device.type == "cuda":
        torch.cuda.synchronize(trainer.model.device)


def probe(argv: list[str], threads: int, answer: Connection) -> None:
    """In a process of its own: sends the measurement, or why there is none."""
    accept_signals()
    torch.set_num_threads(threads)
    result: dict[str, Any]
    try:
        result = measure(argv)
    except UserError as error:
        result = {"error": str(error)}
    except Exception as error:  # whatever a method raises: an estimate is not worth stopping for
        result = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    answer.send(result)
