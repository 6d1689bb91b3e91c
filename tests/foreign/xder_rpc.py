"""X-DER with a fixed classifier: the corners of a simplex, one for each class."""

import math

import torch
import torch.nn.functional as F

from models.utils.continual_model import ContinualModel
from utils import none_or_float
from utils.args import ArgumentParser, add_rehearsal_args
from utils.buffer import Buffer


def simplex(corners):
    """Unit vectors in `corners` − 1 dimensions, all with the same angle between them."""
    basis = torch.linalg.qr(torch.eye(corners) - 1 / corners)[0][:, :-1]
    points = (torch.eye(corners) - 1 / corners) @ basis
    return F.normalize(points)


class FixedHead(ContinualModel):
    NAME = "xder_rpc"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument("--alpha", type=float, required=True)
        parser.add_argument("--beta", type=float, required=True)
        parser.add_argument("--clip_grad", type=none_or_float, default=None)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size)
        self.head = math.sqrt(self.num_classes) * simplex(self.num_classes).to(self.device)
        self.first_task = self.args.start_from or 0

    def forward(self, x):
        return self.net(x)[:, :-1] @ self.head.T

    def end_task(self, dataset):
        per_class = self.args.buffer_size // self.n_seen_classes
        assert self.n_classes_current_task == self.n_seen_classes - self.n_past_classes
        kept = None if self.current_task == self.first_task else self.buffer.get_all_data()
        self.buffer.empty()
        if kept is not None:
            for label in range(self.n_past_classes):
                rows = (kept[1] == label).nonzero().flatten()[:per_class]
                self.buffer.add_data(kept[0][rows], kept[1][rows], kept[2][rows])
        with torch.no_grad():
            batches = [(data[2], data[1], self(data[0].to(self.device))) for data in dataset.train_loader]
        images, labels, logits = (torch.cat(parts) for parts in zip(*batches))
        for label in range(self.n_past_classes, self.n_seen_classes):
            rows = (labels == label).nonzero().flatten()[:per_class]
            self.buffer.add_data(examples=images[rows], labels=labels[rows], logits=logits[rows])

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.opt.zero_grad()
        loss = self.loss(self(inputs)[:, : self.n_seen_classes], labels)
        if not self.buffer.is_empty():
            old_x, old_y, old_logits = self.buffer.get_data(
                self.args.minibatch_size, transform=self.transform, device=self.device
            )
            old_out = self(old_x)
            loss = loss + self.args.alpha * F.mse_loss(old_out, old_logits) + self.args.beta * self.loss(old_out, old_y)
        loss.backward()
        if self.args.clip_grad is not None:
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.args.clip_grad)
        self.opt.step()
        return loss.item()
