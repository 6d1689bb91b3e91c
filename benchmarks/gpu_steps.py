"""Steps of the training loop on a device: how many a second, how often the host waits for it, how much memory.

They are those of a run: loading, guarding and logging are in them. Images are random, of the datasets' shapes and
numbers, so that no files are needed; the steps are of the second task, where replay and calibration act.
"""

from __future__ import annotations

import gc
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from datasets.seq_tinyimg import SequentialTinyImagenet
from datasets.utils.cifar import SequentialCifar
from experiments.running.probe import beginning, to_second_task, wait
from utils.training import Trainer

ROOT = Path(__file__).resolve().parents[1]
IMAGES = {True: {10: 50_000, 100: 50_000, 200: 100_000}, False: {10: 10_000, 100: 10_000, 200: 10_000}}  # by classes
SYNCHRONISING = "called a synchronizing CUDA operation"  # torch's words
Figures = dict[str, Any]


WATCHED = 50  # steps in which waits are counted: what is fetched once in so many is among them


class Effort(NamedTuple):
    """How long is measured: steps before it, rounds, steps in each round. With those watched: less than an epoch."""

    warm_up: int = 10
    rounds: int = 5
    steps: int = 18


@lru_cache
def _random_bytes(count: int, size: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *size, 3), dtype=np.uint8)


def _random_split(self: Any, train: bool) -> tuple[np.ndarray, np.ndarray]:
    count = IMAGES[train][self.N_CLASSES]
    return _random_bytes(count, tuple(self.SIZE)), np.arange(count) % self.N_CLASSES


def use_random_images() -> None:
    """For all datasets of the paper, in this process."""
    for dataset in (SequentialCifar, SequentialTinyImagenet):
        dataset.load_split = _random_split  # type: ignore[method-assign]


def measured(argv: list[str], effort: Effort, compile_mode: str | None = None) -> Figures:
    """Figures of a run's steps, or the error that it ends in: one that fails hinders no other."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    try:
        with beginning([*argv, "--seed=0", "--nowand=1", "--non_verbose=1"]) as trainer, trainer.guard:
            if compile_mode is not None:
                trainer.model.net.compile(mode=compile_mode)
            return _figures(trainer, effort)
    except Exception as error:  # whatever a method, a kernel or a compiler raises
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def _figures(trainer: Trainer, effort: Effort) -> Figures:
    end_of_task = to_second_task(trainer)
    steps = trainer.steps()
    warm_up = _seconds(trainer, steps, effort.warm_up)
    on_gpu = trainer.model.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(trainer.model.device)
    times = [_seconds(trainer, steps, effort.steps) / effort.steps for _ in range(effort.rounds)]
    peak = torch.cuda.max_memory_allocated(trainer.model.device) if on_gpu else None
    waits = waits_of(steps, WATCHED) if on_gpu else None
    return {
        "steps_per_second": 1 / statistics.median(times),
        "steps_per_second_range": [1 / max(times), 1 / min(times)],
        "warm_up_seconds": warm_up,
        "end_of_task_seconds": end_of_task,
        "peak_bytes": peak,
        "waits_per_step": None if waits is None else sum(waits.values()) / WATCHED,
        "waits": waits,
    }


def _seconds(trainer: Trainer, steps: Iterator[None], count: int) -> float:
    """How long so many steps take, until the device has done all of them."""
    wait(trainer)
    start = time.perf_counter()
    _make(steps, count)
    wait(trainer)
    return time.perf_counter() - start


def _make(steps: Iterator[None], count: int) -> None:
    made = sum(1 for _ in islice(steps, count))
    if made < count:
        raise ValueError(f"the task ended after {made} of {count} steps")


def waits_of(steps: Iterator[None], count: int) -> dict[str, int]:
    """What made the host wait for the device during so many steps, by place; torch itself tells."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            _make(steps, count)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return dict(Counter(_place(warning) for warning in told if SYNCHRONISING in str(warning.message)))


def _place(warning: warnings.WarningMessage) -> str:
    """File and line, without the folders of this machine."""
    path = Path(warning.filename)
    name = path.relative_to(ROOT) if ROOT in path.parents and "site-packages" not in path.parts else path.name
    return f"{name}:{warning.lineno}"
