"""What DGC costs: the steps and the ends of tasks of `dgc_er` against those of `er`.

    python benchmarks/dgc_overhead.py [--output FILE.json]

ResNet-18 of width 16 in the second task of seq-cifar100 (random images of its shape and number: no files), 32 + 32
images a step, 500 in the buffer, one torch thread, `-O 1` (channels_last) and `-O 0`. In every round each side makes
one step on the same batch, in random order. Only `observe` is timed: loading and guarding would dilute the ratio.
Times are CPU times of the process, which for one thread is what a clock shows when nothing else is running.

- A ratio is one of medians; its interval is the central 95 % of a bootstrap over the rounds.
- The rounds fall into one stage. What the last step of a stage takes beyond others is timed in pairs of its own, and
  1/m of it is added.
- What `closed` adds to a step drowns in the noise of whole steps. So its parts are timed inside them (the hooks) or
  by themselves (watching the buffer), and added to er's step.
- "All in" adds the end of a task and the beginning of the next (beyond er's own), spread over the steps of 50 epochs.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from backbone import get_backbone
from datasets.seq_cifar100 import SequentialCIFAR100
from models import get_model
from utils.conf import get_device, set_random_seed
from utils.optimization import optimise
from utils.parse import parse_args
from utils.results import environment, write_json

WARM_UP, ROUNDS, STAGE_ROUNDS, WATCH_ROUNDS = 5, 100, 10, 300
TASK_IMAGES, EPOCHS, BATCH = 5000, 50, 32
STEPS = EPOCHS * -(-TASK_IMAGES // BATCH)  # of a task
ESTIMATORS = ("sampled", "released", "closed")
GOALS = {"sampled": {"step": 1.65}, "released": {"step": 2.15}, "closed": {"step": 1.03, "all_in": 1.05}}
FORMATS = {0: "contiguous", 1: "channels_last"}
FLAGS = "--dataset seq-cifar100 --seed 0 --device cpu --num_filters 16 --buffer_size 500 --buffer_fill task_end".split()
Figures = dict[str, Any]


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


class Side:
    """A model in its second task."""

    def __init__(self, level: int, model: str, *flags: str):
        args = parse_args(["--model", model, "-O", str(level), "--batch_size", str(BATCH), *FLAGS, *flags])
        args.device = get_device(args.device)
        set_random_seed(args.seed)
        self.dataset: Any = RandomCIFAR100(args)
        net = get_backbone(args)
        optimise(net, args.device, level)
        self.model: Any = get_model(args, net, self.dataset.get_loss(), self.dataset.get_transform(), self.dataset)
        self.model.net.train()
        self.hooks: list[float] = []  # seconds in the optimizer's hooks, for each step
        self.begin_task()
        self.step(self.batches(1)[0])
        self.end_and_begin()

    def batches(self, count: int) -> list[Any]:
        return [batch for _, batch in zip(range(count), self.dataset.train_loader, strict=False)]

    def begin_task(self) -> float:
        self.dataset.get_data_loaders()
        return timed(self.model.meta_begin_task, self.dataset)

    def end_and_begin(self) -> float:
        return timed(self.model.meta_end_task, self.dataset) + self.begin_task()

    def step(self, batch: Any) -> float:
        self.hooks.append(0.0)
        return timed(self.model.meta_observe, *batch)

    def last_step_of_stage(self, batch: Any) -> float:
        self.model._dgc_stage_step = self.model.args.dgc_m - 1
        return self.step(batch)

    def time_hooks(self) -> None:
        """The optimizer calls them by name, so that they can be replaced."""
        for name in ("_dgc_before_step", "_dgc_after_step"):
            setattr(self.model, name, self._timed_hook(getattr(self.model, name)))

    def _timed_hook(self, hook: Callable) -> Callable:
        def run(optimizer: Any) -> None:
            self.hooks[-1] += timed(hook, optimizer)

        return run

    def watching(self) -> float:
        """Seconds that noting which rows the base draws adds to a step."""
        model = self.model
        times: tuple[list[float], list[float]] = ([], [])

        def draw() -> None:
            model.buffer.get_data(BATCH, transform=model.transform, device=model.device)

        def watched() -> None:
            with model._dgc_recording():
                draw()

        for _ in range(WATCH_ROUNDS):
            for function, found in zip((draw, watched), times, strict=True):
                found.append(timed(function))
        return statistics.median(times[1]) - statistics.median(times[0])

    def bytes(self) -> dict[str, int]:
        model, vectors = self.model, {"gamma": "gamma", "c_t": "calibrator", "running_sum": "record"}
        kept = {name: nbytes(getattr(model, f"_dgc_{attribute}", {})) for name, attribute in vectors.items()}
        snapshot = sum(nbytes(net.state_dict()) for net in getattr(model, "_dgc_snapshot", []))
        return {"buffer": model.buffer.nbytes(), "network": nbytes(model.net.state_dict()), "snapshot": snapshot} | kept


def nbytes(tensors: dict[str, torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def ratio(times: list[float], base: list[float]) -> tuple[float, list[float]]:
    """The ratio of the medians and its interval. Rounds are drawn, so both sides are always from the same ones."""
    pairs = np.array([times, base])
    drawn = pairs[:, np.random.default_rng(0).integers(0, len(base), (4000, len(base)))]
    over, under = np.median(drawn, axis=2)
    return float(np.median(times) / np.median(base)), np.quantile(over / under, [0.025, 0.975]).tolist()


def interleaved_steps(sides: dict[str, Side], batches: list[Any]) -> dict[str, list[float]]:
    """Seconds of every step after the warm-up; there are fewer steps than in a stage."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    order, draw = list(sides), random.Random(0)
    for k in range(WARM_UP + ROUNDS):
        draw.shuffle(order)
        for name in order:
            times[name].append(sides[name].step(batches[k % len(batches)]))
    return {name: values[WARM_UP:] for name, values in times.items()}


def stage_seconds(side: Side, batch: Any) -> float:
    """What the last step of a stage takes beyond another."""
    return statistics.median(side.last_step_of_stage(batch) - side.step(batch) for _ in range(STAGE_ROUNDS))


def estimator(name: str, side: Side, times: dict[str, list[float]], batch: Any, er_end: float) -> Figures:
    """The figures of one estimator; `step` is the ratio to er's step, stages included."""
    er = statistics.median(times["er"])
    whole, whole_interval = ratio(times[name], times["er"])
    if name == "closed":
        hooks = side.hooks[-ROUNDS:]
        share, interval = ratio(hooks, times["er"])
        extra, base = side.watching(), 1.0
        parts = {"hooks_ms": 1e3 * statistics.median(hooks), "watching_ms": 1e3 * extra}
    else:
        extra, base = stage_seconds(side, batch) / side.model.args.dgc_m, 0.0
        share, interval = whole, whole_interval
        parts = {"stage_ms": 1e3 * extra * side.model.args.dgc_m, "m": side.model.args.dgc_m}
    end = side.end_and_begin()
    step = base + share + extra / er
    return {
        "step": step,
        "step_interval": [base + bound + extra / er for bound in interval],
        "all_in": step + (end - er_end) / (STEPS * er),
        "step_ms": 1e3 * statistics.median(times[name]),
        "whole_step": whole,
        "whole_step_interval": whole_interval,
        "end_of_task_seconds": end,
        "bytes": side.bytes(),
        **parts,
    }


def measure(level: int) -> Figures:
    sides = {"er": Side(level, "er")}
    sides |= {name: Side(level, "dgc_er", "--dgc_current", "0", "--dgc_estimator", name) for name in ESTIMATORS}
    sides["closed"].time_hooks()
    batches = sides["er"].batches(ROUNDS)
    times = interleaved_steps(sides, batches)
    end = sides["er"].end_and_begin()
    er = {"step_ms": 1e3 * statistics.median(times["er"]), "end_of_task_seconds": end, "bytes": sides["er"].bytes()}
    return {"memory_format": FORMATS[level], "er": er} | {
        name: estimator(name, sides[name], times, batches[0], end) for name in ESTIMATORS
    }


def show(figures: Figures) -> None:
    er = figures["er"]
    print(
        f"{figures['memory_format']}: er {er['step_ms']:.1f} ms/step, end of a task {er['end_of_task_seconds']:.2f} s"
    )
    for name in ESTIMATORS:
        found = figures[name]
        low, high = found["step_interval"]
        goals = ", ".join(
            f"{key} ≤ {goal}: {'met' if found[key] <= goal else 'MISSED'}" for key, goal in GOALS[name].items()
        )
        print(f"  {name:9} step {found['step']:.4f} ({low:.4f}–{high:.4f}), all in {found['all_in']:.4f}; goal {goals}")
        parts = {key: found[key] for key in ("stage_ms", "hooks_ms", "watching_ms") if key in found}
        print(f"  {'':9} end of a task {found['end_of_task_seconds']:.1f} s, "
              + ", ".join(f"{key[:-3]} {value:.2f} ms" for key, value in parts.items()))  # fmt: skip
        print(f"  {'':9} bytes: " + ", ".join(f"{key} {size:,}" for key, size in found["bytes"].items() if size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="also write the figures to this JSON file")
    output = parser.parse_args().output
    torch.set_num_threads(1)
    result: Figures = {"rounds": ROUNDS, "steps_per_task": STEPS, "task_images": TASK_IMAGES, "goals": GOALS}
    for level in (1, 0):
        result[f"O{level}"] = measure(level)
        show(result[f"O{level}"])
    result |= {"load": os.getloadavg()[0], "environment": environment()}
    if output:
        write_json(output, result)


if __name__ == "__main__":
    main()
