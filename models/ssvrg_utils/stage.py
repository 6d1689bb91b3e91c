"""The stages of streaming SVRG: a snapshot θ̃, and the full gradients of task and buffer there."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from models.utils.dgc_gradients import Pass, Term, Vector, accumulate, mean_gradient
from models.utils.replay import ReplayModel, training_set
from utils.augmentations import apply_transform, to_device

Batch = tuple[Tensor, Tensor]  # images and labels


class StageModel(ReplayModel):
    """Holds θ̃ and ṽ/t + μ̃·(t−1)/t; the notation is that of `Ssvrg`."""

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        super().__init__(backbone, loss, args, transform, dataset)
        # What a stage replays. With boundaries that is the buffer itself, which stays as it is during a task.
        self.stage_buffer = self.make_buffer() if args.task_free else self.buffer
        self.full_transform = self.dataset.get_batch_transform(augment=args.ssvrg_full == "train", stream="ssvrg")
        self.snapshot: list[nn.Module] = []  # θ̃; in a list, to be no submodule
        self.full_gradient: Vector = {}  # ṽ/t + μ̃·(t−1)/t

    def past_share(self) -> float:
        """(t−1)/t; task-free 1/2 once there is something to replay."""
        if self.args.task_free:
            return 0.0 if self.buffer.is_empty() else 0.5
        return super().past_share()

    def fills_at_task_end(self) -> bool:
        return not self.args.task_free

    weighs_tasks = fills_at_task_end

    def begin_stage(self) -> None:
        """θ̃ ← θ, and the full gradients there."""
        self.snapshot = [copy.deepcopy(self.net)]  # with its modes: a frozen body's BatchNorm stays in eval mode
        if self.args.task_free:
            self.stage_buffer.load_state_dict(self.buffer.state_dict())
        past, self.full_gradient = self.past_share(), {}
        if self.args.ssvrg_current:
            accumulate(self.full_gradient, self._mean_gradient(self.task_batches()), 1 - past)
        if past:
            accumulate(self.full_gradient, self._mean_gradient(self.buffer_batches()), past)

    def _mean_gradient(self, batches: Iterable[Batch]) -> Vector:
        """G(D;θ̃) from batches of a set; the live network stands for θ̃, which it equals now."""
        training = self.args.ssvrg_full == "train"
        passes = (Pass(images, (Term(labels),), training) for images, labels in batches)
        return mean_gradient(
            self.net, self.loss, passes, [n for n, p in self.net.named_parameters() if p.requires_grad]
        )

    def task_batches(self) -> Iterator[Batch]:
        task = training_set(self.dataset)
        for rows in self.shuffled(len(task), self.args.batch_size):
            rows = to_device(rows, task.targets.device)
            images, labels = task.batch(rows).to(self.device), task.targets.index_select(0, rows).to(self.device)
            yield apply_transform(images, self.full_transform), labels

    def buffer_batches(self) -> Iterator[Batch]:
        for rows in self.shuffled(len(self.stage_buffer), self.args.minibatch_size):
            images, labels = self.stage_buffer.get_data_by_index(rows, self.full_transform, self.device)
            yield images, labels

    def shuffled(self, count: int, size: int) -> tuple[Tensor, ...]:
        """Rows in batches of one size (±1), of all classes: BatchNorm statistics of a single class would be others."""
        rows = torch.randperm(count, generator=self.random_stream("ssvrg"))
        return rows.tensor_split(math.ceil(count / size))
