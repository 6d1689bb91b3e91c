"""A-GEM with a reservoir: imports from two siblings, and draws from the buffer without a transform."""

import torch

from models.agem import project
from models.gem import overwrite_grad, store_grad
from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.buffer import Buffer


class AveragedGradientsOfStream(ContinualModel):
    NAME = "agem_r"
    COMPATIBILITY = ["class-il", "domain-il", "task-il", "general-continual"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size)
        self.sizes = [p.numel() for p in self.parameters()]
        self.own, self.old = (torch.zeros(sum(self.sizes)).to(self.device) for _ in range(2))

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.zero_grad()
        loss = self.loss(self.net.forward(inputs), labels)
        loss.backward()
        if not self.buffer.is_empty():
            store_grad(self.parameters, self.own, self.sizes)
            x, y = self.buffer.get_data(self.args.minibatch_size, device=self.device)
            self.net.zero_grad()
            self.loss(self.net.forward(x), y).backward()
            store_grad(self.parameters, self.old, self.sizes)
            agrees = self.own @ self.old >= 0
            overwrite_grad(self.parameters, self.own if agrees else project(gxy=self.own, ger=self.old), self.sizes)
        self.opt.step()
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return loss.item()
