"""Gradient Coreset Replay: the buffer is a weighted subset whose gradient approximates that of all the data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from models.gcr_utils.coreset import CoresetModel, Examples, choose, weighted_mean
from models.utils.replay import add_stored_weights
from utils.args import ArgumentParser, add_rehearsal_args, number
from utils.augmentations import to_device
from utils.schedulers import task_epochs


class Gcr(CoresetModel):
    """Gradient Coreset Replay (Tiwari et al. 2022), without its optional contrastive term.

        L = CE(f(B)) + α · Σ_R₁ ŵᵢ · mean_C (f(xᵢ) − zᵢ)² + β · Σ_R₂ ŵᵢ · CE(f(xᵢ), yᵢ),    ŵᵢ = wᵢ / Σw

    The coreset (`--buffer_size`, M) has a block of images for each finished task, with logits z and weights w. Beside
    it are the candidates (`--candidate_size`, K), a reservoir over the current task's images that are classified
    correctly when they are seen (over all its images if there is only one epoch), with w = 1: M + K images are stored,
    not M. The candidates' share of a replay batch is the current task's share of all images that were taken into the
    reservoir so far; they are drawn from its first ⌈M/t⌉ slots. In the first task the whole batch is candidates.

    At the end of task t each old block shrinks to ⌊M/t⌋ of its images, and the new block takes the free rows from the
    candidates, chosen so that weighted gradients stay what they were (models/gcr_utils/, coreset.py and selection.py).

    Task-free, a stretch of the stream plays the part of a task, at first 2K images. Once there are 20 blocks,
    neighbours are joined and stretches become twice as long, so all blocks stand for equal parts of the stream.
    """

    NAME = "gcr"
    COMPATIBILITY = ["class-il", "task-il", "domain-il", "general-continual"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        add_rehearsal_args(parser)
        add_stored_weights(parser)
        add = parser.add_argument
        add("--ridge", type=number(float, above=0), default=0.5, help="penalty on the coreset's squared weights, λ")
        held = "images of the current task that are held beside the buffer, to choose from (default: --buffer_size)"
        add("--candidate_size", type=number(int, 1), help=held)
        return parser

    @classmethod
    def derived_args(cls, args: Any) -> dict[str, Any]:
        return {"candidate_size": args.candidate_size or args.buffer_size}

    def observe(
        self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None
    ) -> dict[str, Tensor]:
        self.opt.zero_grad()
        outputs = self.net(inputs)
        loss_ce = self.loss(outputs, labels)
        loss_mse = loss_replay = torch.zeros((), device=self.device)
        if self.candidates.num_seen_examples or len(self.buffer):
            replay = self.replay()
            squares = (self.net(replay.images).float() - replay.logits).square().mean(1)
            loss_mse = weighted_mean(squares, replay.weights)
            replay = self.replay()
            crossed = self.loss(self.net(replay.images), replay.labels, reduction="none")
            loss_replay = weighted_mean(crossed, replay.weights)
        loss = loss_ce + self.args.alpha * loss_mse + self.args.beta * loss_replay
        loss.backward()
        self.opt.step()
        one_epoch = task_epochs(self.args, self.current_task) <= 1 and self.args.fitting_mode != "iters"
        wanted = torch.ones_like(labels, dtype=torch.bool) if one_epoch else outputs.argmax(1) == labels
        self.candidates.offer(wanted, not_aug_inputs, labels, outputs.detach())
        if self.args.task_free and self.candidates.num_seen_examples >= self.stretch:
            self.end_stretch()
        terms = {"loss": loss, "loss_ce": loss_ce, "loss_mse": loss_mse, "loss_replay": loss_replay}
        return {name: term.detach() for name, term in terms.items()}

    def replay(self) -> Examples:
        """A batch of candidates, then images of the coreset; of candidates alone while there is no coreset.

        How many candidates there are only the device knows, so the size of the batch does not depend on it.
        """
        slots, stored = self.candidate_slots(), len(self.buffer)
        rows = torch.arange(min(self.args.minibatch_size, slots + stored))
        if not self.candidates.num_seen_examples:
            return self._coreset(rows)
        new = self._candidates(len(rows), slots)
        if not stored:
            return new
        return choose(to_device(rows, self.device) < self.n_candidates(len(rows)), new, self._coreset(rows))

    def _candidates(self, count: int, slots: int) -> Examples:
        """So many in random order, repeated while fewer are stored, so that BatchNorm sees them alone.

        All weigh 1. While none is stored, in the first steps of a run, the weights and so the replay terms are 0; what
        passes through the network then is an empty slot.
        """
        drawn = self.candidates.draw(count, slots)
        images, labels, logits = self.candidates.get_data(0, self.transform, device=self.device, force_indexes=drawn)
        weight = self.candidates.taken.clamp(max=1).to(self.weights.dtype)
        return Examples(images, labels, logits, weight.expand(count))

    def _coreset(self, rows: Tensor) -> Examples:
        """So many images of the coreset in random order, repeated only once all were drawn."""
        order = torch.randperm(len(self.buffer), generator=self.random_stream("gcr"))
        index, images, labels, logits, _ = self.buffer.get_data(
            0, self.transform, return_index=True, device=self.device, force_indexes=order[rows % len(order)]
        )
        return Examples(images, labels, logits, self.weights[index])

    def n_candidates(self, size: int) -> Tensor:
        """How many images of a replay batch are candidates if there is a coreset: min(⌊size · q⌋, number, slots).

        q is the current task's share of all images that were taken as candidates so far.
        """
        taken = self.candidates.taken
        share = size * taken // (taken + self.past_taken).clamp(min=1)
        return torch.minimum(share, taken.clamp(max=self.candidate_slots()))
