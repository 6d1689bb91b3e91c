"""How long a run would take here, measured by a few steps of its second task, where replay and calibration act."""

from __future__ import annotations

import itertools
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from main import initialize
from utils.cli.parse import parse_args
from utils.errors import UserError
from utils.evaluate import evaluate_loaders
from utils.resume import store
from utils.resume.signals import accept_signals
from utils.resume.state import pack
from utils.run.precision import autocast
from utils.schedulers import task_steps

FIRST_TASK_STEPS = 3
LEAST_STEPS, LEAST_SECONDS = 3, 0.3


class Probe:
    """The beginning of a run, without a directory: what it does is what `utils.training` does, less the logging."""

    def __init__(self, argv: list[str]):
        self.model, self.dataset, self.args = initialize(parse_args(argv))

    def measure(self) -> dict[str, float]:
        """Seconds of a whole run and bytes of its checkpoints. `--dgc_diagnostics` is not counted."""
        args: Namespace = self.args
        n_tasks = (args.stop_after or self.dataset.N_TASKS) - (args.start_from or 0)
        self._begin_task()
        between = 0.0
        if n_tasks > 1:
            self._train(FIRST_TASK_STEPS, 0)
            between = self._timed(self._end_task)
            self._begin_task()
        self._train(1, 0)  # the first step allocates what later ones reuse
        begun = time.perf_counter()
        steps = self._train(LEAST_STEPS, LEAST_SECONDS)
        per_step = (time.perf_counter() - begun) / steps
        first, length = args.start_from or 0, len(self.dataset.train_loader)
        steps_in_all = sum(task_steps(args, length, task) for task in range(first, first + n_tasks))
        per_test_set = self._timed(self._evaluate) / len(self.dataset.test_loaders)
        evaluations = n_tasks * (n_tasks + 1) / 2
        seconds = steps_in_all * per_step + n_tasks * between + evaluations * per_test_set
        return {"seconds": seconds, "bytes": 2 * self._checkpoint_bytes()}

    def _begin_task(self) -> None:
        self.dataset.get_data_loaders()
        self.model.net.train()
        if not self.args.task_free:
            self.model.meta_begin_task(self.dataset)

    def _end_task(self) -> None:
        if not self.args.task_free:
            self.model.meta_end_task(self.dataset)

    def _train(self, least_steps: int, least_seconds: float) -> int:
        """At least so many steps and seconds; returns the number of steps."""
        extra = {} if self.args.task_free else {"epoch": 0}
        begun = time.perf_counter()
        for done in itertools.count():
            if done >= least_steps and time.perf_counter() - begun >= least_seconds:
                break
            if done % max(1, len(self.dataset.train_loader)) == 0:
                batches = iter(self.dataset.train_loader)
            with autocast(self.model.device, self.args.code_optimization):
                self.model.meta_observe(*next(batches), **extra)
            self._wait()
        return done

    def _evaluate(self) -> None:
        loaders = self.dataset.test_loaders
        ranges = [self.dataset.eval_offsets(task) for task in range(len(loaders))]
        with autocast(self.model.device, self.args.code_optimization):
            evaluate_loaders(self.model, loaders, ranges)

    def _timed(self, action: Callable[[], None]) -> float:
        begun = time.perf_counter()
        action()
        self._wait()
        return time.perf_counter() - begun

    def _wait(self) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)

    def _checkpoint_bytes(self) -> int:
        with tempfile.TemporaryDirectory() as directory:
            store.save(directory, {"model": pack(self.model)})
            return (Path(directory) / store.NEWEST).stat().st_size


def probe(argv: list[str], threads: int, answer: Connection) -> None:
    """In a process of its own: sends what was measured, or why nothing could be."""
    accept_signals()
    torch.set_num_threads(threads)
    result: dict[str, Any]
    try:
        result = Probe(argv).measure()
    except UserError as error:
        result = {"error": str(error)}
    except Exception as error:  # whatever a method raises: an estimate is not worth stopping for
        result = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    answer.send(result)
