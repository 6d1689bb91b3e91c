"""How long a run will take, told once from the speed of its first steps."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from time import perf_counter

import torch

import datasets
from utils.run.timing import duration

WARM_UP_STEPS = 2  # the first ones load kernels, and have nothing to replay yet
MEASURED_SECONDS = 3.0
LONG_SECONDS = 3600  # on a CPU


class FirstSteps:
    """The speed of the first steps of a session.

    `wait` waits for the device, which is done twice: at the beginning and at the end of the measurement.
    """

    def __init__(self, wait: Callable[[], object]):
        self._wait = wait
        self.steps = 0  # counted while the speed is unknown
        self._since = 0.0
        self._over = False

    def step(self) -> bool:
        """Count a step; True once, as soon as the speed is known."""
        if self._over:
            return False
        self.steps += 1
        if self.steps == WARM_UP_STEPS:
            self._wait()
            self._since = perf_counter()
        self._over = self.steps > WARM_UP_STEPS and perf_counter() - self._since >= MEASURED_SECONDS
        return self._over

    def end(self) -> bool:
        """The first task is over: True if the speed was not told yet, whether it is known or not."""
        over, self._over = self._over, True
        return not over

    def seconds_per_step(self) -> float | None:
        """To be asked when it is to be told; None if there were too few steps."""
        if self.steps <= WARM_UP_STEPS:
            return None
        self._wait()
        return (perf_counter() - self._since) / (self.steps - WARM_UP_STEPS)


def opening_lines(args: Namespace, threads: int, steps: int | None, done: int, seconds: float | None) -> list[str]:
    """What a run is made of and how long it will take; `done` of its `steps` are made, each taking some `seconds`."""
    count = "an unknown number of steps" if steps is None else f"{steps:,} steps in all"
    earlier = f", {done:,} of them already made" if done else ""
    parts = f"Device {args.device}, {threads} thread{'s' * (threads != 1)}, {count}{earlier}"
    if not steps or seconds is None:
        return [parts]
    left = (steps - done) * seconds
    whole = "what is left of the run" if done else "the whole run"
    lines = [f"{parts}: about {duration(max(1.0, left))} for {whole}, at the present speed"]
    if args.device.type == "cpu" and left > LONG_SECONDS:
        lines.append(f"That is long for a CPU. What would shorten it: {', '.join(ways_out(args))}.")
    return lines


def ways_out(args: Namespace) -> list[str]:
    """Flags that make a run on a CPU shorter, of those that this one has."""
    ways = ["a GPU (--device cuda)" if torch.cuda.is_available() else "a machine that has a GPU"]
    smaller = f"small-{args.dataset_config}" if args.dataset_config else "small"
    if smaller in datasets.get_dataset_config_names(args.dataset):
        ways.append(f"a smaller scale (--dataset_config {smaller})")
    for flag in ("num_filters", "mlp_hidden_size"):
        if getattr(args, flag, 0) > 8:
            ways.append(f"a narrower network (--{flag} {getattr(args, flag) // 4})")
    if args.fitting_mode == "epochs" and args.n_epochs > 1:
        ways.append("fewer epochs (--n_epochs 1)")
    return ways
