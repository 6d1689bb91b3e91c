"""How long a run will take, told once from the speed of its first steps."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from time import perf_counter

import torch

import datasets
from utils.run.session import Session
from utils.schedulers import task_steps
from utils.status import duration, say

WARM_UP_STEPS = 2  # the first ones load kernels, and have nothing to replay yet
MEASURED_SECONDS = 3.0
LONG_SECONDS = 3600  # on a CPU
WAITING_SECONDS = 20  # a run of a network of so few parameters that takes longer
FEW_PARAMETERS = 100_000


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
        """None after too few steps."""
        if self.steps <= WARM_UP_STEPS:
            return None
        self._wait()
        return (perf_counter() - self._since) / (self.steps - WARM_UP_STEPS)


class Pace:
    """Tells how long the run of a session will take, once its speed is known."""

    def __init__(self, session: Session):
        self.session = session
        self._first_steps = FirstSteps(session.metrics.latest_loss)

    def step(self) -> None:
        if self._first_steps.step():
            self._tell()

    def end_task(self) -> None:
        if self._first_steps.end():
            self._tell()

    def _tell(self) -> None:
        session, position, seconds = self.session, self.session.position, self._first_steps.seconds_per_step()
        done, steps = position.step - self._first_steps.steps, self._steps_in_all()
        for line in opening_lines(session.args, torch.get_num_threads(), steps, done, seconds):
            say(line)
        left = (steps - done) * seconds if steps and seconds else 0.0
        if session.args.device.type == "cpu" and left > WAITING_SECONDS and waits_for_threads(session.model.net):
            say("Steps of so small a network often take a fraction of that time on one thread: set OMP_NUM_THREADS=1.")

    def _steps_in_all(self) -> int | None:
        """Steps of the whole run; None if the end of the current task is unknown."""
        session, position = self.session, self.session.position
        earlier = position.step - position.task_step
        if session.args.inference_only:
            return earlier
        in_task = session.steps_in_task()
        return None if in_task >= sys.maxsize else earlier + in_task + steps_after_task(session)


def steps_after_task(session: Session) -> int:
    return steps_of(session, range(session.position.task + 1, session.end))


def steps_of(session: Session, tasks: range) -> int:
    """Steps of tasks, by their images; a dataset that makes its own loaders is taken to have equal tasks.

    What a method has added to the present training set (exemplars) it is taken to add to later ones, too.
    """
    args, images, present = session.args, session.dataset.images_per_task(), session.position.task
    if images is None or args.fitting_mode == "iters":
        return sum(task_steps(args, session.steps_per_epoch(), task) for task in tasks)
    size, now = args.batch_size, session.loader.dataset
    added = len(now) - getattr(now, "n_own", len(now))
    counts = {task: images[task] + (added if task >= present else 0) for task in tasks}
    epochs = {task: count // size if args.drop_last else -(-count // size) for task, count in counts.items()}
    return sum(task_steps(args, session.limited(length), task) for task, length in epochs.items())


def opening_lines(args: Namespace, threads: int, steps: int | None, done: int, seconds: float | None) -> list[str]:
    """What a run is made of and how long it will take; `done` of its `steps` are made, each taking some `seconds`."""
    count = "an unknown number of steps" if steps is None else f"{steps:,} steps in all"
    earlier = f", {done:,} of them already made" if done else ""
    parts = f"Device {args.device}, {threads} thread{'s' * (threads != 1)}, {count}{earlier}"
    if not steps or seconds is None:
        return [parts]
    left = (steps - done) * seconds
    whole = "what is left of the run" if done else "the whole run"
    told = f"about {duration(max(1.0, left))} for {whole} at the present speed, longer if later tasks replay"
    lines = [f"{parts}: {told}"]
    if args.device.type == "cpu" and left > LONG_SECONDS:
        lines.append(f"That is long for a CPU. What would shorten it: {', '.join(ways_out(args))}.")
    return lines


def waits_for_threads(net: torch.nn.Module) -> bool:
    """Whether several threads share steps of less than a millisecond: on busy cores they mostly wait for each other."""
    sizes = [(parameter.numel(), parameter.dim()) for parameter in net.parameters()]
    convolves = any(dimensions > 2 for _, dimensions in sizes)
    return torch.get_num_threads() > 1 and not convolves and sum(size for size, _ in sizes) <= FEW_PARAMETERS


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
