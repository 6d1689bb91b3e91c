"""X-DER's buffer: images of all classes alike, with logits that are renewed as the network learns."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.utils.exemplars import draw_balanced, keep_first_of_each, require_own_classes
from models.utils.replay import ReplayModel, compute_logits
from models.xder_utils.losses import graft
from utils.augmentations import to_device
from utils.batch_norm import bn_track_stats, network_mode


class Replay(NamedTuple):
    """A batch from the buffer: rows, the network's outputs now, and what is stored with them."""

    rows: Tensor
    outputs: Tensor
    labels: Tensor
    logits: Tensor
    tasks: Tensor
    fresh: Tensor  # not in the batch drawn before


class LogitsModel(ReplayModel):
    """Stores logits with its images, and grafts those of later heads onto them."""

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        super().__init__(backbone, loss, args, transform, dataset)
        require_own_classes(self)
        ranges = [self.get_offsets(task) for task in range(self.n_tasks)]
        self.task_of_class = torch.cat(
            [torch.full((last - first,), task, device=self.device) for task, (first, last) in enumerate(ranges)]
        )
        # How often the logits of a row could have been renewed in this task.
        self.draws = torch.zeros(args.buffer_size, dtype=torch.int64, device=self.device)

    def begin_task(self, dataset: Any) -> None:
        self.draws.zero_()

    def replay(self, drawn_before: Tensor | None = None) -> Replay:
        rows, images, labels, logits, tasks = self.draw_replay(return_index=True)
        before = rows[:0] if drawn_before is None else drawn_before
        fresh = ~(rows[:, None] == before).any(1)
        return Replay(rows, self.net(images), labels, logits, tasks, fresh)

    @torch.no_grad()
    def renew_logits(self, replays: list[Replay]) -> None:
        """With probability 1/n at its n-th draw in this task, an image gets its present logits for heads t, t+1, …

        So each of the draws is as likely as any other to be the one that stays. The outputs are from before the step.
        """
        for replay in replays:
            self.draws.index_add_(0, replay.rows, replay.fresh.long())
            random = torch.rand(len(replay.rows), generator=self.random_stream("xder"))
            chosen = replay.fresh & (to_device(random, self.device) * self.draws[replay.rows] < 1)
            if self.buffer.write_mask is not None:  # a step that was not finite leaves the buffer as it is
                chosen &= self.buffer.write_mask
            # Read again: R₂ must not write back what R₁ has just replaced.
            logits = self.buffer.logits[replay.rows]
            heads = slice(self.n_past_classes, None)
            new = graft(logits, replay.outputs.float(), replay.labels, heads, self.args.gamma)
            self.buffer.logits.index_copy_(0, replay.rows, torch.where(chosen[:, None], new, logits))

    def end_task(self, dataset: Any) -> None:
        """Refill the class-balanced buffer. Logits are recorded as replay will see them: train mode, augmented."""
        keep_first_of_each(self.buffer, self.n_past_classes, self.buffer.buffer_size // self.n_seen_classes)
        with network_mode(self.net, training=True), bn_track_stats(self.net, False):
            self._add_task(dataset.train_loader.dataset)
            if self.n_past_classes:
                self._renew_past_tasks()
        self.count_task(dataset)

    def _add_task(self, images: Any) -> None:
        """Give all free slots to the new classes. Their past logits stay below γ times the true one."""
        past, free = self.n_past_classes, self.buffer.buffer_size - len(self.buffer)
        rows = draw_balanced(images.targets, range(past, self.n_seen_classes), free, self.random_stream("xder"))
        rows = rows.to(images.targets.device)
        batch, labels = images.batch(rows), images.targets[rows].to(self.device)
        logits = compute_logits(self.net, batch, self.transform, self.args.batch_size)
        if past:
            logits = graft(logits, logits, labels, slice(0, past), self.args.gamma)
        self.buffer.add_data(examples=batch, labels=labels, logits=logits, task_labels=self.task_of_class[labels])

    def _renew_past_tasks(self) -> None:
        """Graft heads t, t+1, … of the images of past tasks, from passes over the whole buffer in random order."""
        order = torch.randperm(len(self.buffer), generator=self.random_stream("xder")).to(self.device)
        outputs = compute_logits(self.net, self.buffer.examples[order], self.transform, self.args.batch_size)
        labels, logits = self.buffer.labels[order], self.buffer.logits[order]
        grafted = graft(logits, outputs, labels, slice(self.n_past_classes, None), self.args.gamma)
        is_past = (labels < self.n_past_classes)[:, None]
        self.buffer.logits[order] = torch.where(is_past, grafted, logits)
