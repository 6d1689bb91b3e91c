"""Experience replay, as a plugin whose name is taken and which has none of our flags."""

import torch

from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.buffer import Buffer


class PlainReplay(ContinualModel):
    NAME = "er"
    COMPATIBILITY = ["class-il", "domain-il", "task-il", "general-continual"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size)

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        x, y = inputs, labels
        if not self.buffer.is_empty():
            old_x, old_y = self.buffer.get_data(self.args.minibatch_size, transform=self.transform, device=self.device)
            x, y = torch.cat([x, old_x]), torch.cat([y, old_y])
        self.opt.zero_grad()
        loss = self.loss(self.net(x), y)
        loss.backward()
        self.opt.step()
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return loss.item()
