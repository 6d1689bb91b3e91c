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


def project_all(gradient, others, margin, sweeps=30):
    """The nearest gradient that no other objects to: the dual program, one unknown, at least `margin`, at a time."""
    others = torch.stack(others)
    products, towards = others @ others.T, others @ gradient
    weights = torch.full_like(towards, margin)
    for _ in range(sweeps):
        for i in range(len(weights)):
            rest = towards[i] + products[i] @ weights - products[i, i] * weights[i]
            weights[i] = torch.clamp(-rest / products[i, i], min=margin)
    return gradient + weights @ others


class EpisodicGradients(ContinualModel):
    NAME = "gem"
    COMPATIBILITY = ["class-il", "domain-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument(
            "--gamma", type=float, default=0.5, help="how much of each memory's gradient comes at least"
        )
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        warn_once("the program is solved without a package")
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
            overwrite_grad(self.parameters, project_all(self.own, self.per_task, self.args.gamma), self.sizes)
        self.opt.step()
        return loss.item()
