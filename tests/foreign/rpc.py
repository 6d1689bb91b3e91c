"""Regular polytope classifier: a fixed simplex for a classifier, and a memory that shrinks per class."""

import torch

from datasets import get_dataset  # noqa: F401
from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.buffer import Buffer


def simplex(n_classes):
    """[n_classes - 1, n_classes]: unit vectors, all at the same angle from each other."""
    n = n_classes - 1
    corners = torch.cat([torch.eye(n), torch.full((n, 1), (1 - (1 + n) ** 0.5) / n)], dim=1)
    corners -= corners.mean(1, keepdim=True)
    return corners / corners[:, 0].norm()


class FixedPolytope(ContinualModel):
    NAME = "rpc"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size)
        self.head = simplex(self.cpt * self.n_tasks).to(self.device)

    def forward(self, x):
        return self.net(x)[:, :-1] @ self.head

    def end_task(self, dataset):
        share = self.buffer.buffer_size // (self.cpt * (self.current_task + 1))
        if self.current_task > 0:
            images, labels = self.buffer.get_all_data()
            self.buffer.empty()
            for label in labels.unique():
                rows = (labels == label).nonzero()[:share, 0]
                self.buffer.add_data(examples=images[rows], labels=labels[rows])
        wanted = torch.full((self.cpt * self.n_tasks,), share)
        for _, labels, not_aug_inputs in dataset.train_loader:
            rows = []
            for row, label in enumerate(labels.tolist()):
                if wanted[label] > 0:
                    wanted[label] -= 1
                    rows.append(row)
            if rows:
                self.buffer.add_data(examples=not_aug_inputs[rows].to(self.device), labels=labels[rows].to(self.device))

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.opt.zero_grad()
        losses = self.loss(self(inputs), labels, reduction="none")
        if not self.buffer.is_empty():
            old, y = self.buffer.get_data(self.args.minibatch_size, transform=self.transform, device=self.device)
            losses = torch.cat([losses, self.loss(self(old), y, reduction="none")])
        loss = losses.mean()
        loss.backward()
        self.opt.step()
        return loss.item()
