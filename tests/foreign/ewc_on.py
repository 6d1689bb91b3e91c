"""Online EWC: Fisher information from a pass over the loader after a task; .grad is set before the backward pass."""

import torch

from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser


class OnlineEwc(ContinualModel):
    NAME = "ewc_on"
    COMPATIBILITY = ["class-il", "domain-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        parser.add_argument("--e_lambda", type=float, required=True)
        parser.add_argument("--gamma", type=float, required=True, help="decay of what earlier tasks found important")
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.anchor = None
        self.fisher = None

    def end_task(self, dataset):
        squares = torch.zeros_like(self.net.get_params())
        for data in dataset.train_loader:
            for image, label in zip(data[0].to(self.device), data[1].to(self.device)):
                self.opt.zero_grad()
                self.loss(self.net(image[None]), label[None]).backward()
                squares += self.net.get_grads() ** 2
        squares /= len(dataset.train_loader) * self.args.batch_size
        self.fisher = squares if self.fisher is None else self.args.gamma * self.fisher + squares
        self.anchor = self.net.get_params().data.clone()

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.opt.zero_grad()
        if self.anchor is not None:
            distance = self.net.get_params().data - self.anchor
            self.net.set_grads(2 * self.args.e_lambda * self.fisher * distance)
        loss = self.loss(self.net(inputs), labels)
        loss.backward()
        self.opt.step()
        return loss.item()
