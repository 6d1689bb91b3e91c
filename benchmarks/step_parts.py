"""Where a step of `er` and of `xder` spends its time at the small scale: in the network, and in what else.

    python -m benchmarks.step_parts [--steps 100] [--output FILE.json]

The conditions are those of benchmarks/small_scale.py. Python's profiler, with CPU time as its clock, gives what each
part of a step takes with all that it calls; parts do not contain one another, and what is in none of them is "rest".
The profiler makes Python slower but not what torch computes, so the parts outside the network are rather over- than
underestimated. A second pass, under torch's profiler, gives the share of each operation in what operations take.
"""

from __future__ import annotations

import argparse
import cProfile
import inspect
import os
import pstats
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from backbone.ResNetBlock import ResNet
from benchmarks.small_scale import FIRST_STEPS, FLAGS, steps_of
from datasets.utils.loader import TaskLoader
from utils.buffer import Buffer
from utils.resume.guard import NonFiniteGuard
from utils.run.environment import environment
from utils.run.write_results import write_json
from utils.simclrloss import SupConLoss
from utils.strong_views import StrongViews

STEPS = 100
PARTS: dict[str, Callable[..., Any]] = {
    "forward": ResNet.forward,
    "backward": torch.Tensor.backward,
    "optimizer": torch.optim.SGD.step,
    "batch of the stream": TaskLoader._batch,  # a part of a step that has no public name
    "draws from the buffer": Buffer.get_data,
    "storing": Buffer.add_data,
    "strong views": StrongViews.__call__,
    "contrastive losses": SupConLoss.forward,
    "finite check": NonFiniteGuard._before_step,  # likewise
}
OPERATIONS = {"convolution": ("convolution",), "BatchNorm": ("batch_norm",), "ReLU": ("threshold", "clamp_min")}


def take(steps: Iterator[None], count: int) -> None:
    for _ in islice(steps, count):
        pass


def milliseconds_by_part(steps: Iterator[None], count: int) -> dict[str, float]:
    """Of one step; in all, and in each part."""
    profiler = cProfile.Profile(time.process_time)
    profiler.enable()
    take(steps, count)
    profiler.disable()
    stats = pstats.Stats(profiler)
    by_code = {place: 1e3 * cumulative / count for place, (_, _, _, cumulative, _) in stats.stats.items()}  # type: ignore[attr-defined]
    found = {part: by_code.get(place_of(function), 0.0) for part, function in PARTS.items()}
    whole = 1e3 * stats.total_tt / count  # type: ignore[attr-defined]
    return {"step": whole, **found, "rest": whole - sum(found.values())}


def place_of(function: Callable[..., Any]) -> tuple[str, int, str]:
    """How the profiler names a function."""
    code = inspect.unwrap(function).__code__
    return code.co_filename, code.co_firstlineno, code.co_name


def share_by_operation(steps: Iterator[None], count: int) -> dict[str, float]:
    """Of the time that all operations take."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        take(steps, count)
    times = {
        event.key: event.self_cpu_time_total for event in profiler.key_averages() if event.key.startswith("aten::")
    }
    return {
        kind: sum(spent for key, spent in times.items() if any(name in key for name in names)) / sum(times.values())
        for kind, names in OPERATIONS.items()
    }


def measure(count: int) -> dict[str, Any]:
    found = {}
    for name in FIRST_STEPS:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            steps = steps_of(stack, 1, name, *FLAGS, "--base_path", folder)
            parts = milliseconds_by_part(steps, count)
            found[name] = {"milliseconds": parts, "share_of_operations": share_by_operation(steps, count)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--output", type=Path, help="also write the figures to this JSON file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(args.steps) | {"steps": args.steps, "load": os.getloadavg()[0], "environment": environment()}
    for name in FIRST_STEPS:
        print(name, {part: round(value, 2) for part, value in result[name]["milliseconds"].items()})
        print(name, {kind: f"{share:.0%}" for kind, share in result[name]["share_of_operations"].items()})
    if args.output:
        write_json(args.output, result)


if __name__ == "__main__":
    main()
