"""X-DER: logits in the buffer are brought up to date, and heads of tasks to come are prepared."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.utils.replay import add_replay_weight, add_stored_weights
from models.xder_utils.losses import future_constraint, past_constraint
from models.xder_utils.stored_logits import LogitsModel, Replay
from utils.args import ArgumentParser, add_rehearsal_args, binary_to_boolean_type, number
from utils.batch_norm import bn_track_stats
from utils.simclrloss import SupConLoss
from utils.strong_views import StrongViews


class XDer(LogitsModel):
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
        add("--simclr_batch_size", type=number(int, 1), default=64, help="contrastive loss: images from the buffer")
        add("--simclr_num_aug", type=number(int, 2), default=2, help="contrastive loss: strong views of each image")
        add("--past_constraint", type=binary_to_boolean_type, default=True, help="0: no L_past (as newer Mammoth)")
        add("--future_constraint", type=binary_to_boolean_type, default=True, help="0: no L_future")
        return parser

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        super().__init__(backbone, loss, args, transform, dataset)
        data = self.dataset
        mean, std = data.MEAN or (0.0,) * data.CHANNELS, data.STD or (1.0,) * data.CHANNELS
        self.strong_views = StrongViews(data.SIZE, mean, std, self.random_stream("strong_views"))
        self.supervised_contrast = SupConLoss(args.simclr_temp, base_temperature=args.simclr_temp)

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
            first = self.replay()
            second = self.replay(first.rows)
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
        self.renew_logits(replays)
        terms = {"loss": loss, "loss_stream": loss_stream, "loss_mse": loss_mse, "loss_replay": loss_replay}
        terms |= {"loss_contrast": loss_contrast, "loss_past": loss_past, "loss_future": loss_future}
        return {name: term.detach() for name, term in terms.items()}

    def _future_constraint(self, outputs: Tensor, labels: Tensor, replays: list[Replay]) -> Tensor:
        """Over the stream's images and the distinct ones from the buffer, in one mean."""
        outputs = torch.cat([outputs, *(replay.outputs for replay in replays)])
        tasks = torch.cat([self.task_of_class[labels], *(replay.tasks for replay in replays)])
        own_head = self.task_of_class == tasks[:, None]
        distinct = torch.cat([torch.ones_like(labels, dtype=torch.bool), *(replay.fresh for replay in replays)])
        return future_constraint(outputs, own_head, self.n_seen_classes, self.args.m, distinct)

    def _contrast_future_heads(self, images: Tensor, labels: Tensor) -> Tensor:
        """Supervised contrast of strong views, in each future head separately; the mean over heads and images."""
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
