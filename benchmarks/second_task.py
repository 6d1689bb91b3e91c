"""Models in the second task of seq-cifar100, and how their times compare: what benchmarks of methods share.

Random images of CIFAR-100's shape and number (no files are needed), 32 + 32 images a step, 500 in the buffer, one
torch thread. In every round each side makes one step on the same batch, in random order. Only `observe` is timed:
loading and guarding would dilute the ratios. Times are CPU times of the process, which for one thread is what a clock
shows when nothing else is running.
"""

from __future__ import annotations

import random
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from backbone import get_backbone
from datasets.seq_cifar100 import SequentialCIFAR100
from models import get_model
from utils.cli.parse import parse_args
from utils.conf import get_device, set_random_seed
from utils.resume.signals import StopSignals
from utils.run.directory import RunDirectory
from utils.run.precision import optimise
from utils.run.session import Session
from utils.training import Trainer

TASK_IMAGES, EPOCHS, BATCH = 5000, 50, 32
STEPS = EPOCHS * -(-TASK_IMAGES // BATCH)  # of a task
FORMATS = {0: "contiguous", 1: "channels_last"}
FLAGS = ["--dataset", "seq-cifar100", "--seed", "0", "--device", "cpu", "--batch_size", str(BATCH)]


@lru_cache
def random_images(tasks: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (tasks * TASK_IMAGES, 32, 32, 3), dtype=np.uint8)


class RandomCIFAR100(SequentialCIFAR100):
    """The three tasks that are met here have images; all 100 classes have an output."""

    def load_split(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        images = random_images() if train else random_images()[:100]
        return images, np.arange(len(images)) % 30


def timed(function: Callable, *args: Any) -> float:
    start = time.process_time()
    function(*args)
    return time.process_time() - start


def build(level: int, width: int, model: str, *flags: str) -> tuple[Any, Any, Namespace]:
    """What `main.initialize` builds, with random images."""
    args = parse_args(["--model", model, "-O", str(level), "--num_filters", str(width), *FLAGS, *flags])
    args.device = get_device(args.device)
    set_random_seed(args.seed)
    dataset: Any = RandomCIFAR100(args)
    net = get_backbone(args)
    optimise(net, args.device, level)
    return get_model(args, net, dataset.get_loss(), dataset.get_transform(), dataset), dataset, args


@contextmanager
def trainer_in_second_task(model: Any, dataset: Any, args: Namespace, first_steps: int = 0) -> Iterator[Trainer]:
    """The training loop at the start of the second task, after a few steps of the first."""
    with RunDirectory(args) as run, StopSignals() as signals:
        trainer = Trainer(Session(model, dataset, args, run, signals))
        trainer.begin_task()
        with trainer.guard:
            for _ in zip(range(first_steps), trainer.steps(), strict=False):
                pass
        trainer.end_task()
        trainer.position.end_task()
        trainer.begin_task()
        yield trainer


class Side:
    """A model in its second task, after a few steps of the first."""

    def __init__(self, level: int, width: int, model: str, *flags: str, first_steps: int = 1):
        self.model, self.dataset, _ = build(level, width, model, *flags)
        self.model.net.train()
        self.begin_task()
        for batch in self.batches(first_steps):
            self.step(batch)
        self.end_and_begin()

    def batches(self, count: int) -> list[Any]:
        return [batch for _, batch in zip(range(count), self.dataset.train_loader, strict=False)]

    def begin_task(self) -> float:
        self.dataset.get_data_loaders()
        return timed(self.model.meta_begin_task, self.dataset)

    def end_and_begin(self) -> float:
        return timed(self.model.meta_end_task, self.dataset) + self.begin_task()

    def step(self, batch: Any) -> float:
        return timed(self.model.meta_observe, *batch)


def nbytes(tensors: dict[str, torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def ratio(times: list[float], base: list[float]) -> tuple[float, list[float]]:
    """The ratio of the medians, and the central 95 % of a bootstrap over the rounds.

    Rounds are drawn, so both sides are always from the same ones.
    """
    pairs = np.array([times, base])
    drawn = pairs[:, np.random.default_rng(0).integers(0, len(base), (4000, len(base)))]
    over, under = np.median(drawn, axis=2)
    return float(np.median(times) / np.median(base)), np.quantile(over / under, [0.025, 0.975]).tolist()


def interleaved_steps(steps: dict[str, Callable[[Any], float]], batches: list[Any], warm_up: int, rounds: int) -> dict:
    """Seconds of every step of every side after the warm-up."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    order, draw = list(steps), random.Random(0)
    for k in range(warm_up + rounds):
        draw.shuffle(order)
        for name in order:
            times[name].append(steps[name](batches[k % len(batches)]))
    return {name: values[warm_up:] for name, values in times.items()}
