"""Synaptic intelligence: rewrites the gradients between the backward pass and the step."""

import torch

from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser


class PathIntegral(ContinualModel):
    NAME = "si"
    COMPATIBILITY = ["class-il", "domain-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        parser.add_argument("--c", type=float, required=True, help="strength of the penalty")
        parser.add_argument("--xi", type=float, default=1.0, help="damping")
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.anchor = self.net.get_params().data.clone()
        self.importance = torch.zeros_like(self.anchor)
        self.path = torch.zeros_like(self.anchor)

    def end_task(self, dataset):
        here = self.net.get_params().data.clone()
        self.importance += self.path / ((here - self.anchor) ** 2 + self.args.xi)
        self.anchor = here
        self.path.zero_()

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.opt.zero_grad()
        loss = self.loss(self.net(inputs), labels)
        loss.backward()
        plain = self.net.get_grads().data
        pull = 2 * self.args.c * self.importance * (self.net.get_params().data - self.anchor)
        self.net.set_grads(plain + pull)
        torch.nn.utils.clip_grad_value_(self.get_parameters(), 1)
        self.opt.step()
        self.path += self.args.lr * plain**2
        return loss.item()
