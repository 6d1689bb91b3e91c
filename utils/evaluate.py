"""Accuracy on the test sets of the tasks seen so far, class-incremental and task-incremental, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from utils.augmentations import to_device
from utils.batch_norm import network_mode


@dataclass
class Evaluation:
    """Percentages per task, and counts[true class, predicted class] for the class-incremental prediction."""

    class_il: list[float]
    task_il: list[float]
    confusion: torch.Tensor

    def per_class(self) -> torch.Tensor:
        """Accuracy of each class in percent; NaN for a class without test images."""
        return 100.0 * self.confusion.diagonal().double() / self.confusion.sum(1)


@torch.no_grad()
def evaluate_loaders(
    model: Any,
    loaders: Sequence[Any],
    ranges: Sequence[tuple[int, int]],
    max_batches: int | None = None,
    first_task: int = 0,
    *,
    n_seen: int | None = None,
    nested: bool = False,
    forward: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Evaluation:
    """Evaluate the model on one loader per task, counted from `first_task`; `ranges[k]` are the classes of loader k.

    Class-IL predicts among the classes met so far, `n_seen`, by default up to those of the last loader, Task-IL among
    the classes of the image's own task. `forward` stands for the model's own. If loaders are `nested`, each with the
    images of those before it, the last one's are counted in the confusions. The device is read once, at the end.
    """
    n_seen = ranges[-1][1] if n_seen is None else n_seen
    n_classes = model.num_classes
    confusion = torch.zeros(n_classes * n_classes, dtype=torch.int64, device=model.device)
    hits, counts = [], []
    with network_mode(model.net, training=False):
        for task, (loader, (first, last)) in enumerate(zip(loaders, ranges, strict=True), first_task):
            right, count = torch.zeros(2, dtype=torch.int64, device=model.device), 0
            if nested:
                confusion.zero_()
            for batch in islice(loader, max_batches):
                images, labels = (to_device(field, model.device) for field in batch[:2])
                outputs = _outputs(model, images, task) if forward is None else forward(images)
                class_il = outputs[:, :n_seen].argmax(1)
                task_il = outputs[:, first:last].argmax(1) + first
                right += torch.stack([(class_il == labels).sum(), (task_il == labels).sum()])
                count += len(labels)
                confusion.index_add_(0, labels * n_classes + class_il, torch.ones_like(labels))
            hits.append(right)
            counts.append(count)
    class_il_hits, task_il_hits = torch.stack(hits, dim=1).tolist()
    return Evaluation(
        [100.0 * right / count for right, count in zip(class_il_hits, counts, strict=True)],
        [100.0 * right / count for right, count in zip(task_il_hits, counts, strict=True)],
        confusion.reshape(n_classes, n_classes).cpu(),
    )


def _outputs(model: Any, images: torch.Tensor, task: int) -> torch.Tensor:
    """A method for task-incremental learning alone is given the task of the images."""
    knows_no_task = {"class-il", "domain-il", "general-continual"} & set(model.COMPATIBILITY)
    return model(images) if knows_no_task else model(images, task)


def mask_classes(outputs: torch.Tensor, dataset: Any, k: int) -> None:
    """Mammoth's: leave only the outputs for the classes of task k, in place."""
    first, last = dataset.eval_offsets(k)
    outputs[:, :first] = outputs[:, last:] = -float("inf")


def evaluate(model: Any, dataset: Any, last: bool = False, return_loss: bool = False) -> tuple[Any, ...]:
    """Mammoth's: percentages on the test sets of the tasks seen (class-il, task-il), or on the last one only.

    With `return_loss` also the mean loss over all their images.
    """
    first = len(dataset.test_loaders) - 1 if last else 0
    loaders = dataset.test_loaders[first:]
    ranges = [dataset.eval_offsets(k) for k in range(first, len(dataset.test_loaders))]
    result = evaluate_loaders(model, loaders, ranges, first_task=first)
    return (result.class_il, result.task_il, *([mean_loss(model, loaders, first)] if return_loss else []))


@torch.no_grad()
def mean_loss(model: Any, loaders: Sequence[Any], first_task: int) -> float:
    """Over all images of the loaders, one per task, counted from `first_task`."""
    total: Any = 0.0  # stays on the device: a pass does not wait for the one before
    count = 0
    with network_mode(model.net, training=False):
        for task, loader in enumerate(loaders, first_task):
            for batch in loader:
                images, labels = (to_device(field, model.device) for field in batch[:2])
                total = total + model.loss(_outputs(model, images, task), labels).double() * len(labels)
                count += len(labels)
    return float(total) / count
