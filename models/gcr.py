"""Gradient Coreset Replay: the memory is a weighted subset whose gradient approximates that of all the data."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from models.gcr_utils.memory import CandidateReservoir, Examples, choose
from models.gcr_utils.selection import logit_gradients, select
from models.utils.replay import ReplayModel, add_stored_weights, to_input, training_set
from utils.args import ArgumentParser, add_rehearsal_args, number
from utils.augmentations import to_device
from utils.modes import network_mode
from utils.schedulers import task_epochs

CHUNK = 256  # images per forward pass at the end of a task
MOST_STRETCHES = 20  # task-free: then two become one


class Gcr(ReplayModel):
    """Gradient Coreset Replay (Tiwari et al. 2022), without its optional contrastive term.

        L = CE(f(B)) + α · Σ_R₁ ŵᵢ · mean_C (f(xᵢ) − zᵢ)² + β · Σ_R₂ ŵᵢ · CE(f(xᵢ), yᵢ),    ŵᵢ = wᵢ / Σw

    There are two memories. The coreset (`--buffer_size`, M) has a block of images for each finished task, with logits z
    and weights w. The candidates (`--candidate_size`, K) are a reservoir over the current task's images that are
    classified right when they come by (over all its images if there is one epoch only), with w = 1. So memory is
    M + K images, not M. Of a replay batch, candidates have the share that the current task has among all images offered
    to the reservoir so far, in this task and earlier ones; they are drawn from the first ⌈M/t⌉ slots.

    At the end of task t each old block shrinks to ⌊M/t⌋ of its images, and the new block takes what is free from the
    candidates. A block that fits keeps its images and their weights. From others images are chosen such that, for each
    class, with g the gradient of β·CE + α·MSE at the last layer,

        ‖Σ_new wᵢgᵢ − Σ_old wᵢgᵢ‖² + λ‖w‖²,  w ≥ 0

    is small: by matching pursuit, with class quotas in proportion to the images, which stops as soon as the best image
    is one that it has already. Random ones then fill the block, with weight 1. λ is absolute, while g vanishes as the
    network learns: the longer a task is trained, the fewer images the pursuit takes and the more are random.

    Task-free, a stretch of the stream stands for a task: at first of 2K images. As soon as there are 20
    blocks, neighbours join and stretches become twice as long, so blocks always stand for equal parts of the stream.

    Ours: these gradients are of un-augmented images in eval mode (the published code augments, and normalises each
    image by its batch), because they are then functions of the image alone. Old weights are in the target only, so
    that a block stands for what it stood for before, up to λ; the published code has them in the gradients of both
    sums, and forgets them. If the quotas exceed a block, the largest weights stay (there: the smallest).
    """

    NAME = "gcr"
    COMPATIBILITY = ["class-il", "task-il", "domain-il", "general-continual"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        add_rehearsal_args(parser)
        add_stored_weights(parser)
        add = parser.add_argument
        add("--ridge", type=number(float, above=0), default=0.5, help="penalty on the coreset's squared weights, λ")
        add(
            "--candidate_size",
            type=number(int, 1),
            help="images of the current task that are held beside the buffer, to choose from (default: --buffer_size)",
        )
        return parser

    @classmethod
    def derived_args(cls, args: Any) -> dict[str, Any]:
        return {"candidate_size": args.candidate_size or args.buffer_size}

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        super().__init__(backbone, loss, args, transform, dataset)
        # self.buffer is the coreset; its `task_labels` are the blocks.
        self.weights = torch.ones(args.buffer_size, device=self.device)
        self.candidates = CandidateReservoir(
            args.candidate_size, self.device, self.random_stream("gcr"), self.dataset.image_dtype
        )
        self.past_taken = 0  # images of finished tasks that were candidates, once for each time that they were shown
        self.stretches, self.stretch = 0, 2 * args.candidate_size  # task-free: finished ones, and images of the next

    def load_buffer(self, buffer: Any) -> None:
        """A coreset of another run (`--loadcheck`) comes without its weights."""
        super().load_buffer(buffer)
        self.weights.fill_(1)

    # -- a step ------------------------------------------------------------------------------------------------

    def observe(
        self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None
    ) -> dict[str, Tensor]:
        self.opt.zero_grad()
        outputs = self.net(inputs)
        loss_ce = self.loss(outputs, labels)
        loss_mse = loss_replay = torch.zeros((), device=self.device)
        stream = Examples(inputs, labels, outputs.detach().float(), torch.zeros(len(labels), device=self.device))
        if self.candidates.num_seen_examples or len(self.buffer):
            replay = self._replay(stream)
            squares = (self.net(replay.images).float() - replay.logits).square().mean(1)
            loss_mse = weighted_mean(squares, replay.weights)
            replay = self._replay(stream)
            crossed = self.loss(self.net(replay.images), replay.labels, reduction="none")
            loss_replay = weighted_mean(crossed, replay.weights)
        loss = loss_ce + self.args.alpha * loss_mse + self.args.beta * loss_replay
        loss.backward()
        self.opt.step()
        self.candidates.offer(self._wanted(outputs, labels), not_aug_inputs, labels, outputs.detach())
        if self.args.task_free and self.candidates.num_seen_examples >= self.stretch:
            self._end_stretch()
        terms = {"loss": loss, "loss_ce": loss_ce, "loss_mse": loss_mse, "loss_replay": loss_replay}
        return {name: term.detach() for name, term in terms.items()}

    def _wanted(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if task_epochs(self.args, self.current_task) > 1 or self.args.fitting_mode == "iters":
            return outputs.argmax(1) == labels
        return torch.ones_like(labels, dtype=torch.bool)

    def n_candidates(self, size: int) -> Tensor:
        """How many images of a replay batch are candidates: min(⌊size · q⌋, their number, their slots).

        q is their share of all images that were taken as candidates so far. Only the device knows their number, since
        it finds out which images are classified right.
        """
        taken = self.candidates.taken
        share = size * taken // (taken + self.past_taken).clamp(min=1)
        return torch.minimum(share, taken.clamp(max=self._candidate_slots()))

    def _candidate_slots(self) -> int:
        """Those in use for replay: of as many as the task's block would have if it ended now."""
        return min(math.ceil(self.args.buffer_size / (self.n_blocks + 1)), self.candidates.capacity)

    def _replay(self, stream: Examples) -> Examples:
        """A batch from both memories: first candidates, then images of the coreset.

        While there is no coreset, images of the stream stand in for them, with weight 0.
        """
        slots, stored = self._candidate_slots(), len(self.buffer)
        size = min(self.args.minibatch_size, slots + stored)
        rows = torch.arange(size)
        if stored:
            order = torch.randperm(stored, generator=self.random_stream("gcr"))
            past = self._coreset(order[rows % stored])
        else:
            past = stream.rows(to_device(rows % len(stream.labels), self.device))
        if not self.candidates.num_seen_examples:
            return past
        drawn = self.candidates.draw(size, slots)
        images, labels, logits = self.candidates.get_data(0, self.transform, device=self.device, force_indexes=drawn)
        new = Examples(images, labels, logits, torch.ones(size, device=self.device))
        return choose(to_device(rows, self.device) < self.n_candidates(size), new, past)

    def _coreset(self, rows: Tensor) -> Examples:
        index, images, labels, logits, _ = self.buffer.get_data(
            0, self.transform, return_index=True, device=self.device, force_indexes=rows
        )
        return Examples(images, labels, logits, self.weights[index])

    # -- the coreset -------------------------------------------------------------------------------------------

    @property
    def n_blocks(self) -> int:
        """Tasks, or stretches of a stream without tasks, that are finished; the coreset has a block for each."""
        return self.stretches if self.args.task_free else self.current_task

    def end_task(self, dataset: Any) -> None:
        # A task that another run has trained (`--start_from`) counts as if it had been trained here.
        elsewhere = task_epochs(self.args, self.current_task) * len(training_set(dataset))
        self._end_block(int(self.candidates.taken) if self.candidates.num_seen_examples else elsewhere)

    def _end_stretch(self) -> None:
        self._end_block(int(self.candidates.taken))
        self.stretches += 1
        if self.stretches >= min(MOST_STRETCHES, self.args.buffer_size):
            if not self.buffer.is_empty():
                self.buffer.task_labels //= 2
            self.stretches = (self.stretches + 1) // 2
            self.stretch *= 2

    def _end_block(self, taken: int) -> None:
        """Old blocks shrink, and the candidates become a new one."""
        blocks, size = {}, self.args.buffer_size
        if not self.buffer.is_empty():
            tasks = self.buffer.task_labels[: len(self.buffer)]
            coreset = Examples(self.buffer.examples, self.buffer.labels, self.buffer.logits, self.weights)
            for task in tasks.unique().tolist():
                pool = coreset.rows((tasks == task).nonzero()[:, 0])
                blocks[task] = self._select(pool, size // (self.n_blocks + 1))
        if int(self.candidates.taken):
            images, labels, logits = self.candidates.content()
            pool = Examples(images, labels, logits, torch.ones(len(labels), device=self.device))
            blocks[self.n_blocks] = self._select(pool, size - sum(len(block.labels) for block in blocks.values()))
        self._store(blocks)
        self.past_taken += taken
        self.candidates.start_anew()

    def _select(self, pool: Examples, budget: int) -> Examples:
        """At most so many images of the pool, with the weights that make them stand for all of it."""
        if budget == 0:
            return pool.rows(slice(0))
        outputs, features = self._outputs_and_features(pool.images)
        deltas = logit_gradients(outputs, pool.labels, pool.logits, self.args.alpha, self.args.beta)
        rows, weights = select(
            deltas, features, pool.labels, pool.weights, budget, self.args.ridge, self.random_stream("gcr")
        )
        return pool.rows(rows.to(self.device))._replace(weights=weights.to(self.device))

    @torch.no_grad()
    def _outputs_and_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Of images as they are stored, in eval mode."""
        transform = getattr(self, "normalization_transform", None)
        with network_mode(self.net, training=False):
            parts = [self.net(to_input(x, transform), returnt="both") for x in images.split(CHUNK)]
        outputs, features = zip(*parts, strict=True)
        return torch.cat(outputs), torch.cat(features)

    def _store(self, blocks: dict[int, Examples]) -> None:
        """Let the coreset consist of these blocks."""
        self.buffer.empty()
        for task, (images, labels, logits, weights) in blocks.items():
            first = len(self.buffer)
            self.weights[first : first + len(weights)] = weights
            self.buffer.add_data(images, labels, logits, task_labels=torch.full_like(labels, task))


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Σ wᵢvᵢ / Σw; 0 if there is no weight."""
    return (weights * values).sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
