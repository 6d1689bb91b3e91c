"""GEM: a gradient for each task in memory; the step's own is projected. Siblings import its two helpers."""

import torch

from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.buffer import Buffer, fill_buffer
from utils.conf import warn_once


def store_grad(params, vector, sizes):
    parts = [torch.zeros(size) if p.grad is None else p.grad.flatten() for p, size in zip(params(), sizes)]
    vector.copy_(torch.cat(parts))


def overwrite_grad(params, vector, sizes):
    for p, part in zip(params(), vector.split(sizes)):
        p.grad = part.view_as(p).clone()


def project_all(gradient, others, sweeps=50):
    """A gradient that no other objects to: the violated constraints are gone through again and again."""
    for _ in range(sweeps):
        for other in others:
            product = gradient @ other
            if product < 0:
                gradient = gradient - product / (other @ other) * other
    return gradient


class EpisodicGradients(ContinualModel):
    NAME = "gem"
    COMPATIBILITY = ["class-il", "domain-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        warn_once("this projection is a simple one")
        self.buffer = Buffer(self.args.buffer_size)
        self.sizes = [p.numel() for p in self.parameters()]
        self.per_task = []
        self.own = torch.zeros(sum(self.sizes)).to(self.device)
        self.projections = 0

    def end_task(self, dataset):
        self.per_task.append(torch.zeros_like(self.own))
        fill_buffer(self.buffer, dataset, self.current_task, required_attributes=["examples", "labels", "task_labels"])

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        if not self.buffer.is_empty():
            old_x, old_y, tasks = self.buffer.get_data(
                self.args.buffer_size, transform=self.transform, device=self.device
            )
            for task in tasks.unique():
                self.opt.zero_grad()
                self.loss(self.forward(old_x[tasks == task]), old_y[tasks == task]).backward()
                store_grad(self.parameters, self.per_task[task], self.sizes)
        self.opt.zero_grad()
        loss = self.loss(self.forward(inputs), labels)
        loss.backward()
        store_grad(self.parameters, self.own, self.sizes)
        if any(self.own @ other < 0 for other in self.per_task):
            self.projections += 1
            overwrite_grad(self.parameters, project_all(self.own, self.per_task), self.sizes)
        self.opt.step()
        return loss.item()
