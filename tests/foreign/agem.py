"""A-GEM: imports from a sibling; fills its buffer from the loader at the end of a task."""

import torch

from models.gem import overwrite_grad, store_grad
from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.buffer import Buffer


def project(gxy, ger):
    """The part of one gradient that another does not object to."""
    return gxy - (gxy @ ger) / (ger @ ger) * ger


class AveragedGradients(ContinualModel):
    NAME = "agem"
    COMPATIBILITY = ["class-il", "domain-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size)
        self.sizes = [p.numel() for p in self.parameters()]
        self.own, self.old = (torch.zeros(sum(self.sizes)).to(self.device) for _ in range(2))

    def end_task(self, dataset):
        share = self.args.buffer_size // dataset.N_TASKS
        while share > 0:
            y, x = next(iter(dataset.train_loader))[1:]
            self.buffer.add_data(examples=x[:share], labels=y[:share])
            share -= len(y)

    def draw(self):
        return self.buffer.get_data(self.args.minibatch_size, transform=self.transform, device=self.device)

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.zero_grad()
        loss = self.loss(self.net.forward(inputs), labels)
        loss.backward()
        if not self.buffer.is_empty():
            store_grad(self.parameters, self.own, self.sizes)
            x, y = self.draw()
            self.net.zero_grad()
            self.loss(self.net.forward(x), y).backward()
            store_grad(self.parameters, self.old, self.sizes)
            agrees = self.own @ self.old >= 0
            overwrite_grad(self.parameters, self.own if agrees else project(self.own, self.old), self.sizes)
        self.opt.step()
        return loss.item()
