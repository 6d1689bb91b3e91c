"""Wall-clock of a run, over all the sessions it is made in. No file but `timing.json` holds any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from time import perf_counter
from typing import Any


class Timing:
    """Seconds per task of training and of evaluation, steps and images, for `timing.json`.

    It is part of a checkpoint: the time of steps that are lost in a crash and made again counts once, so the
    speeds are those of the steps in the result.
    """

    def __init__(self) -> None:
        self.started = _now()
        self.sessions = 1
        self.steps = self.images = 0
        self.seconds: dict[str, dict[int, float]] = {"train": {}, "eval": {}}
        self._running: tuple[str, int] | None = None
        self._since = 0.0

    @contextmanager
    def measure(self, kind: str, task: int) -> Iterator[None]:
        """`with timing.measure("train", task)`: adds to what earlier sessions spent there. Not nested."""
        self._running, self._since = (kind, task), perf_counter()
        try:
            yield
        finally:
            self._lap()
            self._running = None

    def step(self, images: int) -> None:
        self.steps += 1
        self.images += images

    def _lap(self) -> None:
        if self._running is not None:
            kind, task = self._running
            now = perf_counter()
            self.seconds[kind][task] = self.seconds[kind].get(task, 0.0) + now - self._since
            self._since = now

    def state_dict(self) -> dict[str, Any]:
        self._lap()  # a checkpoint may be taken in the middle of a task
        return {
            "started": self.started,
            "sessions": self.sessions,
            "steps": self.steps,
            "images": self.images,
            "seconds": {kind: dict(by_task) for kind, by_task in self.seconds.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.started, self.steps, self.images = state["started"], state["steps"], state["images"]
        self.sessions = state["sessions"] + 1
        self.seconds = {kind: dict(by_task) for kind, by_task in state["seconds"].items()}

    def report(self) -> dict[str, Any]:
        """The content of `timing.json`: speeds are those of training, evaluation left out."""
        self._lap()
        training = sum(self.seconds["train"].values())
        tasks = sorted({task for by_task in self.seconds.values() for task in by_task})
        return {
            "started": self.started,
            "finished": _now(),
            "sessions": self.sessions,
            "steps": self.steps,
            "steps_per_second": self.steps / training if training else None,
            "images_per_second": self.images / training if training else None,
            "tasks": [
                {"task": task + 1} | {f"{kind}_seconds": by_task.get(task) for kind, by_task in self.seconds.items()}
                for task in tasks
            ],
        }


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
