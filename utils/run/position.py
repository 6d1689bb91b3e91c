"""Where a run stands."""

from __future__ import annotations

from dataclasses import dataclass, fields
from reprlib import repr as shortened
from typing import Any


@dataclass
class Position:
    """Task, epoch and step, all counted from 0. `in_task` is set between a task's begin and end."""

    task: int = 0
    in_task: bool = False
    epoch: int = 0
    in_epoch: bool = False
    epoch_step: int = 0
    task_step: int = 0
    step: int = 0

    def begin_task(self) -> None:
        self.in_task, self.in_epoch, self.epoch, self.task_step = True, False, 0, 0

    def end_task(self) -> None:
        self.task += 1
        self.in_task = False

    def begin_epoch(self) -> None:
        self.in_epoch, self.epoch_step = True, 0

    def end_epoch(self) -> None:
        self.epoch += 1
        self.in_epoch = False

    def count_step(self) -> None:
        self.epoch_step += 1
        self.task_step += 1
        self.step += 1

    def restore(self, values: Any) -> None:
        """Take these fields and no others, each with a value of its type: the values come from a file."""
        kinds = {field.name: type(field.default) for field in fields(self)}
        if not isinstance(values, dict) or {n: type(v) for n, v in values.items()} != kinds or min(values.values()) < 0:
            raise ValueError(f"position is {shortened(values)}")
        vars(self).update(values)

    def __str__(self) -> str:
        """With the steps made in the task, as the progress bar counts them."""
        if not self.in_task:
            return f"task {self.task + 1}, before its first step"
        return f"task {self.task + 1}, epoch {self.epoch + 1}, step {self.task_step}"

    def step_under_way(self) -> str:
        return f"task {self.task + 1}, epoch {self.epoch + 1}, step {self.task_step + 1}"
