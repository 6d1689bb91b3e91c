"""What a step takes that is not the network: `er` and `xder` at the small scale, against their bare passes.

    python -m benchmarks.small_scale [--rounds 100] [--output FILE.json]

`--dataset_config small` (ResNet-8 of 16 filters, channels_last) in the second task, with random images of CIFAR-100's
shape and number (no files), 32 + 32 images a step, 2000 in the buffer, one torch thread. A step of the training loop
is everything from one batch to the next: loading, augmentation, draw, loss, guard, log. Its bare counterpart is
the network alone: forward passes of as many images on batches that lie ready, cross-entropy, backward pass and step.
X-DER has four passes: stream, two draws, and two strong views of each of 96 images. In every round each side makes one
step, in random order. A ratio is one of medians; its interval is the central 95 % of a bootstrap over the rounds.
"Undisturbed" is the ratio of the times that a tenth of a side's steps stay below. "er, compiled" is `er` with `-O 3`,
torch.compile; the seconds to its sixth step in the second task, by the clock, are mostly compilation.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.second_task import build, interleaved_steps, ratio, timed, trainer_in_second_task
from utils.run.environment import environment
from utils.run.write_results import write_json

WARM_UP, ROUNDS = 5, 100
FLAGS = ["--dataset_config", "small", "--non_verbose", "1"]
COMPILED = 3  # the level of -O
FIRST_STEPS = {"er": 63, "xder": 1}  # of the first task, that its buffer is full; X-DER fills it at the end
PASSES = {"er": [64], "xder": [32, 32, 32, 192]}  # images
GOALS = {"er": 1.10}
WIDTH, UNDISTURBED = 16, 0.1


def bare_step(passes: list[int], *flags: str) -> Callable[[Any], float]:
    """Forward, backward, step, and nothing else."""
    model, _, _ = build(1, WIDTH, "sgd", *flags)
    model.net.train()
    batches = [torch.randn(n, 3, 32, 32).to(memory_format=torch.channels_last) for n in passes]
    targets = [torch.randint(20, (n,)) for n in passes]

    def step() -> None:
        model.opt.zero_grad()
        losses = [F.cross_entropy(model.net(x), y) for x, y in zip(batches, targets, strict=True)]
        sum(losses[1:], losses[0]).backward()
        model.opt.step()

    return lambda _: timed(step)


def loop_step(steps: Iterator[None]) -> Callable[[Any], float]:
    return lambda _: timed(next, steps)


def measure(rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        flags = [*FLAGS, "--base_path", folder]
        sides: dict[str, Callable[[Any], float]] = {}
        for name, passes in PASSES.items():
            sides[name] = loop_step(steps_of(stack, 1, name, *flags))
            sides[f"{name}, bare"] = bare_step(passes, *flags)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder  # nothing compiled earlier
        start = time.perf_counter()
        sides["er, compiled"] = loop_step(steps_of(stack, COMPILED, "er", *flags))
        seconds = time.perf_counter() - start
        times = interleaved_steps(sides, [None], WARM_UP, rounds)
    found = {name: figures(times[name], times[f"{name}, bare"]) for name in PASSES}
    compiled = figures(times["er, compiled"], times["er"]) | {"seconds_before": seconds}
    return {"rounds": rounds, "goals": GOALS, "er, compiled": compiled} | found


def steps_of(stack: ExitStack, level: int, name: str, *flags: str) -> Iterator[None]:
    """The training loop in the second task, after some steps."""
    built = build(level, WIDTH, name, "--buffer_size", "2000", *flags)
    trainer = stack.enter_context(trainer_in_second_task(*built, first_steps=FIRST_STEPS[name]))
    stack.enter_context(trainer.guard)
    steps = trainer.steps()
    for _ in range(WARM_UP):
        next(steps)
    return steps


def figures(loop: list[float], bare: list[float]) -> dict[str, Any]:
    found, interval = ratio(loop, bare)
    low, low_bare = (float(np.quantile(times, UNDISTURBED)) for times in (loop, bare))
    return {
        "ratio": found,
        "ratio_interval": interval,
        "step_ms": 1e3 * float(np.median(loop)),
        "bare_ms": 1e3 * float(np.median(bare)),
        "undisturbed_ratio": low / low_bare,
        "undisturbed_step_ms": 1e3 * low,
        "undisturbed_bare_ms": 1e3 * low_bare,
    }


def show(name: str, found: dict[str, Any]) -> None:
    low, high = found["ratio_interval"]
    times = f"{found['step_ms']:.1f} ms/step, bare {found['bare_ms']:.1f}"
    goal = GOALS.get(name)
    verdict = f"; goal ≤ {goal:.2f}: {'met' if found['ratio'] <= goal else 'MISSED'}" if goal else ""
    ratios = f"ratio {found['ratio']:.3f} ({low:.3f}–{high:.3f}), undisturbed {found['undisturbed_ratio']:.3f}"
    print(f"{name}: {times}, {ratios}{verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--output", type=Path, help="also write the figures to this JSON file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(args.rounds) | {"load": os.getloadavg()[0], "environment": environment()}
    for name in PASSES:
        show(name, result[name])
    compiled = result["er, compiled"]
    print(f"er with -O 3: {compiled['ratio']:.3f} of er's time per step, {compiled['seconds_before']:.0f} s before")
    if args.output:
        write_json(args.output, result)


if __name__ == "__main__":
    main()
