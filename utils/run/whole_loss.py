"""`--loss_diagnostics K`: the loss over all training images so far, along a run (the paper's Figure 3).

The loss that a step reports is that of its own batch, replayed images included. What a method is after is the loss over
all images of all tasks so far, most of which it no longer has. The training loop has them. Before every K-th step of a
task it measures, at the present θ, as test images are evaluated (un-augmented, BatchNorm in eval mode),

- `seen`: the mean over the training images of all tasks so far, the present one included;
- `current` and, from the second task on, `past`: the two parts of it.

It is the dataset's loss of what the method predicts, over all outputs. A measurement leaves no trace in the run.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from models.utils.dgc_gradients import CHUNK
from models.utils.replay import to_input
from utils.evaluate import mean_loss
from utils.run.diagnostics import Batch, TrainingSets
from utils.run.precision import autocast


class WholeLoss(TrainingSets):
    """Measures every `every` steps; 0 or None is off."""

    def due(self, task_step: int) -> bool:
        """Before a step, counted from 0 in its task: the first is where the task before has left θ."""
        return bool(self.every) and task_step % self.every == 0

    def measure(self, task: int) -> dict[str, float]:
        begun = self.tasks[: task + 1]
        with autocast(self.model.device, self.model.args.code_optimization):
            losses = [mean_loss(self.model, [self._batches(*images)], k) for k, images in enumerate(begun)]
        sizes = [len(labels) for _, labels in begun]
        values = {"seen": _mean(losses, sizes), "current": losses[-1]}
        return values | ({"past": _mean(losses[:-1], sizes[:-1])} if task else {})

    def _batches(self, images: Tensor, labels: Tensor) -> Iterator[Batch]:
        transform = self.model.dataset.get_batch_transform(augment=False)
        for rows, own in zip(images.split(CHUNK), labels.split(CHUNK), strict=True):
            yield to_input(rows, transform), own


def _mean(values: list[float], weights: list[int]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
