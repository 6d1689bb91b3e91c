"""What the training loop costs: its steps against the same steps and finite check written bare.

    python -m benchmarks.loop [--output FILE.json]

Both sides train the same tiny network (where overhead shows most) on the same batches, in one process, in turns;
the ratio of their processor times is the median over the rounds. A checkpoint of the run is timed by itself, by the
clock, because it waits for the disk.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from main import initialize
from utils.cli.parse import parse_args
from utils.resume.guard import norm_on_host
from utils.resume.signals import StopSignals
from utils.resume.store import NEWEST
from utils.run.directory import RunDirectory
from utils.run.environment import environment
from utils.run.session import Session
from utils.run.write_results import write_json
from utils.training import Trainer

EPOCHS, ROUNDS = 20, 15


def build(base_path: str) -> tuple[Any, Any, Any]:
    flags = ["--model", "sgd", "--dataset", "seq-digits", "--seed", "0", "--n_epochs", str(EPOCHS)]
    model, dataset, args = initialize(parse_args([*flags, "--base_path", base_path, "--non_verbose", "1"]))
    return model, dataset, args


def bare_epochs(model: Any, loader: Any) -> int:
    """The training loop that one would write by hand."""
    steps = 0
    for _ in range(EPOCHS):
        for inputs, labels, _ in loader:
            model.opt.zero_grad()
            finite_step(model, model.loss(model.net(inputs), labels))
            steps += 1
    return steps


def finite_step(model: Any, loss: torch.Tensor) -> None:
    """Backward pass and step, with the guard against non-finite numbers written bare."""
    loss.backward()
    stepped = [p for group in model.opt.param_groups for p in group["params"]]  # faster to list than the network's
    norm = norm_on_host([p.grad for p in stepped if p.grad is not None])
    if not (math.isfinite(loss.item()) and math.isfinite(norm)):
        raise RuntimeError("not finite")
    model.opt.step()


def loop_epochs(trainer: Trainer) -> int:
    """The same epochs through the training loop."""
    trainer.position.begin_task()
    with trainer.guard:
        trainer.fit()
    return trainer.position.task_step


def seconds_per_step(clock: Callable[[], float], function: Any, *args: Any) -> float:
    start = clock()
    steps = function(*args)
    return (clock() - start) / steps


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as base_path:
        model, dataset, args = build(base_path)
        with RunDirectory(args) as run, StopSignals() as signals:
            trainer = Trainer(Session(model, dataset, args, run, signals))
            trainer.begin_task()
            times: dict[str, list[float]] = {"bare": [], "loop": []}
            for _ in range(ROUNDS):
                times["bare"].append(seconds_per_step(time.process_time, bare_epochs, model, dataset.train_loader))
                times["loop"].append(seconds_per_step(time.process_time, loop_epochs, trainer))
            checkpoint = min(seconds_per_step(time.perf_counter, save_checkpoint, trainer) for _ in range(5))
            size = (run.path / NEWEST).stat().st_size
    ratios = [loop / bare for loop, bare in zip(times["loop"], times["bare"], strict=True)]
    return {
        "bare_us_per_step": 1e6 * statistics.median(times["bare"]),
        "loop_us_per_step": 1e6 * statistics.median(times["loop"]),
        "ratio": statistics.median(ratios),
        "ratio_of_best": min(times["loop"]) / min(times["bare"]),
        "ratio_quartiles": statistics.quantiles(ratios, n=4),
        "rounds": ROUNDS,
        "load": os.getloadavg()[0],
        "steps_per_round": EPOCHS * len(dataset.train_loader),
        "checkpoint_seconds": checkpoint,
        "checkpoint_bytes": size,
        "checkpoint_share_at_default": checkpoint / (60 * args.checkpoint_minutes),
    }


def save_checkpoint(trainer: Trainer) -> int:
    trainer.session.checkpoint()
    return 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="also write the figures to this JSON file")
    output = parser.parse_args().output
    torch.set_num_threads(1)
    result = measure() | {"environment": environment()}
    print(f"bare {result['bare_us_per_step']:.0f} µs/step, loop {result['loop_us_per_step']:.0f} µs/step")
    print(f"ratio {result['ratio']:.3f} (median of {ROUNDS} rounds), of the best times {result['ratio_of_best']:.3f}")
    print(f"a checkpoint takes {1e3 * result['checkpoint_seconds']:.0f} ms ({result['checkpoint_bytes']} bytes)")
    if output:
        write_json(output, result)


if __name__ == "__main__":
    main()
