"""Meta-experience replay: one image per step, parameters rewritten by hand."""

import torch

from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.buffer import Buffer


class MetaReplay(ContinualModel):
    NAME = "mer"
    COMPATIBILITY = ["class-il", "domain-il", "task-il", "general-continual"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        parser.set_defaults(batch_size=1)
        add_rehearsal_args(parser)
        parser.add_argument("--beta", type=float, required=True, help="share of a step that is kept within a batch")
        parser.add_argument("--gamma", type=float, required=True, help="share that is kept across batches")
        parser.add_argument("--batch_num", type=int, default=1)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        args.batch_size = 1
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size)

    def go_back(self, start, share):
        self.net.set_params(start + share * (self.net.get_params() - start))

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        outer = self.net.get_params().data.clone()
        for _ in range(self.args.batch_num):
            x, y = inputs, labels
            if not self.buffer.is_empty():
                old_x, old_y = self.buffer.get_data(
                    self.args.minibatch_size, transform=self.transform, device=self.device
                )
                x, y = torch.cat([old_x, x]), torch.cat([old_y, y])
            inner = self.net.get_params().data.clone()
            self.opt.zero_grad()
            loss = self.loss(self.net(x), y)
            loss.backward()
            self.opt.step()
            self.go_back(inner, self.args.beta)
        self.go_back(outer, self.args.gamma)
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return loss.item()
