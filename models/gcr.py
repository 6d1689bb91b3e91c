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
    it are the candidates (`--candidate_size`, K), a reservoir over the current task's images that are classified right
    when they come by (over all its images if there is one epoch only), with w = 1: M + K images are stored, not M. Of a
    replay batch, candidates have the share that the current task has among all images offered to the reservoir so far;
    they are drawn from the first ⌈M/t⌉ slots.

    At the end of task t each old block shrinks to ⌊M/t⌋ of its images, and the new block takes what is free from the
    candidates, such that weighted gradients stay what they were (models/gcr_utils/, coreset.py and selection.py).

    Task-free, a stretch of the stream stands for a task: at first of 2K images. As soon as there are 20
    blocks, neighbours join and stretches become twice as long, so blocks always stand for equal parts of the stream.
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
            stream = Examples(inputs, labels, outputs.detach().float(), torch.zeros(len(labels), device=self.device))
            replay = self.replay(stream)
            squares = (self.net(replay.images).float() - replay.logits).square().mean(1)
            loss_mse = weighted_mean(squares, replay.weights)
            replay = self.replay(stream)
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

    def replay(self, stream: Examples) -> Examples:
        """A batch of candidates, then images of the coreset.

        How many candidates there are only the device knows, so the batch has always the same size. In the first task,
        while they don't fill it and there is no coreset, the stream's images do, without weight: BatchNorm normalises
        few candidates by statistics of real images.
        """
        slots, stored = self.candidate_slots(), len(self.buffer)
        rows = torch.arange(min(self.args.minibatch_size, slots + stored))
        past = self._coreset(rows) if stored else stream.rows(to_device(rows % len(stream.labels), self.device))
        if not self.candidates.num_seen_examples:
            return past
        drawn = self.candidates.draw(len(rows), slots)
        images, labels, logits = self.candidates.get_data(0, self.transform, device=self.device, force_indexes=drawn)
        new = Examples(images, labels, logits, torch.ones(len(rows), device=self.device))
        return choose(to_device(rows, self.device) < self.n_candidates(len(rows)), new, past)

    def _coreset(self, rows: Tensor) -> Examples:
        """As many images in random order; none comes twice before all did."""
        order = torch.randperm(len(self.buffer), generator=self.random_stream("gcr"))
        index, images, labels, logits, _ = self.buffer.get_data(
            0, self.transform, return_index=True, device=self.device, force_indexes=order[rows % len(order)]
        )
        return Examples(images, labels, logits, self.weights[index])

    def n_candidates(self, size: int) -> Tensor:
        """How many images of a replay batch are candidates: min(⌊size · q⌋, their number, their slots).

        q is their share of all images that were taken as candidates so far.
        """
        taken = self.candidates.taken
        share = size * taken // (taken + self.past_taken).clamp(min=1)
        return torch.minimum(share, taken.clamp(max=self.candidate_slots()))
