"""The coreset in a buffer: blocks of weighted images, one for each finished task (`task_labels`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.gcr_utils.candidates import CandidateReservoir, per_row
from models.gcr_utils.selection import logit_gradients, select
from models.utils.dgc_gradients import CHUNK
from models.utils.replay import ReplayModel, to_input, training_set
from utils.batch_norm import network_mode
from utils.schedulers import task_epochs

MOST_STRETCHES = 20  # task-free: then two become one


class Examples(NamedTuple):
    """Images with what is known about each of them."""

    images: Tensor
    labels: Tensor
    logits: Tensor
    weights: Tensor

    def rows(self, index: Tensor | slice) -> Examples:
        return Examples(*(field[index] for field in self))


def choose(mask: Tensor, yes: Examples, no: Examples) -> Examples:
    """Row by row from one or the other, without asking the host which."""
    return Examples(*(torch.where(per_row(mask, a), a, b) for a, b in zip(yes, no, strict=True)))


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Σ wᵢvᵢ / Σw; 0 if there is no weight."""
    return (weights * values).sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)


def shrunk_blocks(
    buffer: Any, weights: Tensor, budget: int, select: Callable[[Examples, int], Examples]
) -> dict[int, Examples]:
    """The blocks by task, each with at most so many of its images."""
    if buffer.is_empty():
        return {}
    tasks = buffer.task_labels[: len(buffer)]
    coreset = Examples(buffer.examples, buffer.labels, buffer.logits, weights)
    pools = {task: coreset.rows((tasks == task).nonzero()[:, 0]) for task in tasks.unique().tolist()}
    return {task: select(pool, budget) for task, pool in pools.items()}


def store_blocks(buffer: Any, weights: Tensor, blocks: dict[int, Examples]) -> None:
    """Let the coreset consist of these blocks."""
    buffer.empty()
    for task, (images, labels, logits, block_weights) in blocks.items():
        first = len(buffer)
        weights[first : first + len(block_weights)] = block_weights
        buffer.add_data(images, labels, logits, task_labels=torch.full_like(labels, task))


@torch.no_grad()
def outputs_and_features(net: nn.Module, images: Tensor, transform: Any) -> tuple[Tensor, Tensor]:
    """What the network makes of images as they are stored, in eval mode."""
    with network_mode(net, training=False):
        parts = [net(to_input(x, transform), returnt="both") for x in images.split(CHUNK)]
    outputs, features = zip(*parts, strict=True)
    return torch.cat(outputs), torch.cat(features)


class CoresetModel(ReplayModel):
    """What GCR stores: `self.buffer` is the coreset, beside it are the candidates of the current task."""

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        super().__init__(backbone, loss, args, transform, dataset)
        self.weights = torch.ones(args.buffer_size, device=self.device)  # of the coreset's rows
        self.candidates = CandidateReservoir(
            args.candidate_size, self.device, self.random_stream("gcr"), self.dataset.image_dtype
        )
        self.past_taken = 0  # images of finished tasks that were candidates, once for each time that they were shown
        self.stretches, self.stretch = 0, 2 * args.candidate_size  # task-free: finished ones, and images of the next

    def load_buffer(self, buffer: Any) -> None:
        """A coreset of another run (`--loadcheck`) comes without its weights."""
        super().load_buffer(buffer)
        self.weights.fill_(1)

    @property
    def n_blocks(self) -> int:
        """Tasks, or stretches of a stream without tasks, that are finished; the coreset has a block for each."""
        return self.stretches if self.args.task_free else self.current_task

    def candidate_slots(self) -> int:
        """How many candidates are replayed: as many as the task's block would have if it ended now."""
        return min(math.ceil(self.args.buffer_size / (self.n_blocks + 1)), self.candidates.capacity)

    def end_task(self, dataset: Any) -> None:
        # A task that another run has trained (`--start_from`) counts as if it had been trained here.
        elsewhere = task_epochs(self.args, self.current_task) * len(training_set(dataset))
        self._end_block(int(self.candidates.taken) if self.candidates.num_seen_examples else elsewhere)

    def end_stretch(self) -> None:
        self._end_block(int(self.candidates.taken))
        self.stretches += 1
        if self.stretches >= min(MOST_STRETCHES, self.args.buffer_size):
            if not self.buffer.is_empty():
                self.buffer.task_labels //= 2
            self.stretches = (self.stretches + 1) // 2
            self.stretch *= 2

    def _end_block(self, taken: int) -> None:
        """Old blocks shrink, and the candidates become a new one."""
        size = self.args.buffer_size
        blocks = shrunk_blocks(self.buffer, self.weights, size // (self.n_blocks + 1), self._select)
        if int(self.candidates.taken):
            images, labels, logits = self.candidates.content()
            pool = Examples(images, labels, logits, torch.ones(len(labels), device=self.device))
            blocks[self.n_blocks] = self._select(pool, size - sum(len(block.labels) for block in blocks.values()))
        store_blocks(self.buffer, self.weights, blocks)
        self.past_taken += taken
        self.candidates.start_anew()

    def _select(self, pool: Examples, budget: int) -> Examples:
        """At most so many images of the pool, with the weights that make them stand for all of it."""
        if budget == 0:
            return pool.rows(slice(0))
        args, transform = self.args, getattr(self, "normalization_transform", None)
        outputs, features = outputs_and_features(self.net, pool.images, transform)
        deltas = logit_gradients(outputs, pool.labels, pool.logits, args.alpha, args.beta)
        generator = self.random_stream("gcr")
        rows, weights = select(deltas, features, pool.labels, pool.weights, budget, args.ridge, generator)
        return pool.rows(rows.to(self.device))._replace(weights=weights.to(self.device))
