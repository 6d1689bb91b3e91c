"""DER++: images, labels and logits; two draws per step. Everything is imported from utils.args."""

import torch.nn.functional as F

from models.utils.continual_model import ContinualModel
from utils.args import *
from utils.buffer import Buffer


class DarkReplayPlus(ContinualModel):
    NAME = "derpp"
    COMPATIBILITY = ["class-il", "domain-il", "task-il", "general-continual"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        for name in ("alpha", "beta"):
            parser.add_argument(f"--{name}", type=float, required=True)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size)

    def draw(self):
        return self.buffer.get_data(self.args.minibatch_size, transform=self.transform, device=self.device)

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.opt.zero_grad()
        now = self.net(inputs)
        loss = self.loss(now, labels)
        if not self.buffer.is_empty():
            first_x, _, first_logits = self.draw()
            second_x, second_y, _ = self.draw()
            loss = loss + self.args.alpha * F.mse_loss(self.net(first_x), first_logits)
            loss = loss + self.args.beta * self.loss(self.net(second_x), second_y)
        loss.backward()
        self.opt.step()
        self.buffer.add_data(examples=not_aug_inputs, labels=labels, logits=now.data)
        return loss.item()
