"""X-DER: logits in memory are brought up to date, and heads of tasks to come are prepared."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from models.utils.exemplars import draw_balanced, keep_first_of_each, require_own_classes
from models.utils.replay import ReplayModel, add_replay_weight, add_stored_weights, compute_logits
from models.xder_utils.losses import future_constraint, graft, past_constraint
from utils.args import ArgumentParser, add_rehearsal_args, binary_to_boolean_type, number
from utils.augmentations import to_device
from utils.batch_norm import bn_track_stats
from utils.modes import network_mode
from utils.simclrloss import SupConLoss
from utils.strong_views import StrongViews


class Replay(NamedTuple):
    """A batch from memory: rows, the network's outputs now, and what is stored with them."""

    rows: Tensor
    outputs: Tensor
    labels: Tensor
    logits: Tensor
    tasks: Tensor
    fresh: Tensor  # not in the batch drawn before


class XDer(ReplayModel):
    """eXtended DER (Boschini et al. 2022), with the contrastive loss on future heads.

    Head k is the logits of task k's classes; P classes are past, t is the current task.

        L = CE(head_t(B)) + α · mean (f(R₁) − z)² + β · CE(f(R₂) on the P past outputs)
            + λ · L_contrast + η · (L_past + L_future)

    With `--replay_weight tasks` the first term weighs 1/t, those of R₁ and R₂ (t−1)/t.
    """

    NAME = "xder"
    NEEDS_IMAGES = "its contrastive loss compares augmented views of an image"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        add_rehearsal_args(parser)
        add_replay_weight(parser)
        add_stored_weights(parser)
        weight, add = number(float, 0), parser.add_argument
        add("--gamma", type=number(float, 0, 1), default=0.85, help="grafted logits: fraction of the true class's, γ")
        add("--lambd", type=weight, default=0.05, help="weight of the contrastive loss on future heads, λ")
        add("--eta", type=weight, required=True, help="weight of the constraints on past and future heads, η")
        add("--m", type=weight, required=True, help="margin of the constraints, μ")
        add("--simclr_temp", type=number(float, above=0), default=5.0, help="temperature of the contrastive loss")
        add("--simclr_batch_size", type=number(int, 1), default=64, help="contrastive loss: images from memory")
        add("--simclr_num_aug", type=number(int, 2), default=2, help="contrastive loss: strong views of each image")
        add("--past_constraint", type=binary_to_boolean_type, default=True, help="0: no L_past (as newer Mammoth)")
        add("--future_constraint", type=binary_to_boolean_type, default=True, help="0: no L_future")
        return parser

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        super().__init__(backbone, loss, args, transform, dataset)
        require_own_classes(self)
        data = self.dataset
        mean, std = data.MEAN or (0.0,) * data.CHANNELS, data.STD or (1.0,) * data.CHANNELS
        self.strong_views = StrongViews(data.SIZE, mean, std, self.random_stream("strong_views"))
        self.supervised_contrast = SupConLoss(args.simclr_temp, base_temperature=args.simclr_temp)
        ranges = [self.get_offsets(task) for task in range(self.n_tasks)]
        self.task_of_class = torch.cat(
            [torch.full((last - first,), task, device=self.device) for task, (first, last) in enumerate(ranges)]
        )
        # How often the logits of a row could have been renewed in this task.
        self.draws = torch.zeros(args.buffer_size, dtype=torch.int64, device=self.device)

    # -- a step ------------------------------------------------------------------------------------------------

    def begin_task(self, dataset: Any) -> None:
        self.draws.zero_()

    def observe(
        self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None
    ) -> dict[str, Tensor]:
        args, past, seen = self.args, self.n_past_classes, self.n_seen_classes
        self.opt.zero_grad()
        outputs = self.net(inputs)
        loss_stream = self.loss(outputs[:, past:seen], labels - past)
        loss_mse = loss_replay = loss_past = loss_future = loss_contrast = torch.zeros((), device=self.device)
        replays: list[Replay] = []
        if past and not self.buffer.is_empty():
            first = self._replay()
            second = self._replay(first.rows)
            replays = [first, second]
            loss_mse = F.mse_loss(first.outputs, first.logits)
            loss_replay = self.loss(second.outputs[:, :past], second.labels)
        if past and args.past_constraint:
            loss_past = past_constraint(outputs, past, seen, args.m)
        if self.n_remaining_classes and args.future_constraint:
            loss_future = self._future_constraint(outputs, labels, replays)
        if self.n_remaining_classes and args.lambd:
            loss_contrast = self._contrast_future_heads(not_aug_inputs, labels)
        v, w = self.task_weights()
        loss = v * loss_stream + w * args.alpha * loss_mse + w * args.beta * loss_replay
        loss = loss + args.lambd * loss_contrast + args.eta * (loss_past + loss_future)
        loss.backward()
        self.opt.step()
        self._renew_logits(replays)
        terms = {"loss": loss, "loss_stream": loss_stream, "loss_mse": loss_mse, "loss_replay": loss_replay}
        terms |= {"loss_contrast": loss_contrast, "loss_past": loss_past, "loss_future": loss_future}
        return {name: term.detach() for name, term in terms.items()}

    def _replay(self, drawn_before: Tensor | None = None) -> Replay:
        rows, images, labels, logits, tasks = self.buffer.get_data(
            self.args.minibatch_size, transform=self.transform, return_index=True, device=self.device
        )
        before = rows[:0] if drawn_before is None else drawn_before
        fresh = ~(rows[:, None] == before).any(1)
        return Replay(rows, self.net(images), labels, logits, tasks, fresh)

    def _future_constraint(self, outputs: Tensor, labels: Tensor, replays: list[Replay]) -> Tensor:
        """Over the stream's images and the distinct ones from memory, in one mean."""
        outputs = torch.cat([outputs, *(replay.outputs for replay in replays)])
        tasks = torch.cat([self.task_of_class[labels], *(replay.tasks for replay in replays)])
        own_head = self.task_of_class == tasks[:, None]
        distinct = torch.cat([torch.ones_like(labels, dtype=torch.bool), *(replay.fresh for replay in replays)])
        return future_constraint(outputs, own_head, self.n_seen_classes, self.args.m, distinct)

    def _contrast_future_heads(self, images: Tensor, labels: Tensor) -> Tensor:
        """Supervised contrast of strong views, in each future head by itself; the mean over heads and images."""
        size, views = self.args.simclr_batch_size, self.args.simclr_num_aug
        images, labels = images[:size], labels[:size]
        if not self.buffer.is_empty():
            replayed, replayed_labels, *_ = self.buffer.get_data(size, transform=None, device=self.device)
            images, labels = torch.cat((images, replayed)), torch.cat((labels, replayed_labels))
        with bn_track_stats(self.net, False):  # no image at test time looks like these
            outputs = self.net(self.strong_views(images.repeat_interleave(views, 0)))
        heads = [self.get_offsets(task) for task in range(self.current_task + 1, self.n_tasks)]
        outputs = outputs.unflatten(0, (-1, views))
        losses = [self.supervised_contrast(F.normalize(outputs[..., a:b], dim=2), labels) for a, b in heads]
        return torch.stack(losses).mean()

    @torch.no_grad()
    def _renew_logits(self, replays: list[Replay]) -> None:
        """With probability 1/n at its n-th draw in this task, an image gets its present logits for heads t, t+1, …

        So each of the draws is as likely as any other to be the one that stays. The outputs are from before the step.
        """
        for replay in replays:
            self.draws.index_add_(0, replay.rows, replay.fresh.long())
            random = torch.rand(len(replay.rows), generator=self.random_stream("xder"))
            chosen = replay.fresh & (to_device(random, self.device) * self.draws[replay.rows] < 1)
            if self.buffer.write_mask is not None:  # a step that was not finite leaves memory as it is
                chosen &= self.buffer.write_mask
            # Read again: R₂ must not write back what R₁ has just replaced.
            logits = self.buffer.logits[replay.rows]
            heads = slice(self.n_past_classes, None)
            new = graft(logits, replay.outputs.float(), replay.labels, heads, self.args.gamma)
            self.buffer.logits.index_copy_(0, replay.rows, torch.where(chosen[:, None], new, logits))

    # -- memory ------------------------------------------------------------------------------------------------

    def end_task(self, dataset: Any) -> None:
        """Refill the class-balanced memory. Logits are recorded as replay will see them: train mode, augmented."""
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
        """Graft heads t, t+1, … of the images of past tasks, from passes over the whole memory in random order."""
        order = torch.randperm(len(self.buffer), generator=self.random_stream("xder")).to(self.device)
        outputs = compute_logits(self.net, self.buffer.examples[order], self.transform, self.args.batch_size)
        labels, logits = self.buffer.labels[order], self.buffer.logits[order]
        grafted = graft(logits, outputs, labels, slice(self.n_past_classes, None), self.args.gamma)
        is_past = (labels < self.n_past_classes)[:, None]
        self.buffer.logits[order] = torch.where(is_past, grafted, logits)
