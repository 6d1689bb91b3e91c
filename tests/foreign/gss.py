"""GSS: its buffer asks the model for gradients."""

import torch

from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.gss_buffer import Buffer


class GradientDiversity(ContinualModel):
    NAME = "gss"
    COMPATIBILITY = ["class-il", "domain-il", "task-il", "general-continual"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument("--gss_minibatch_size", type=int, default=None)
        parser.add_argument("--batch_num", type=int, required=True)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        compared = self.args.gss_minibatch_size or self.args.minibatch_size
        self.buffer = Buffer(self.args.buffer_size, self.device, compared, self)

    def get_grads(self, inputs, labels):
        self.net.eval()
        self.opt.zero_grad()
        self.loss(self.net(inputs.to(self.device)), labels.to(self.device)).backward()
        grads = self.net.get_grads().clone().detach()
        self.opt.zero_grad()
        self.net.train()
        return grads[None] if grads.dim() == 1 else grads

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.buffer.drop_cache()
        self.buffer.reset_fathom()
        for _ in range(self.args.batch_num):
            x, y = inputs, labels
            if not self.buffer.is_empty():
                old_x, old_y = self.buffer.get_data(
                    self.args.minibatch_size, transform=self.transform, device=self.device
                )
                x, y = torch.cat([x, old_x]), torch.cat([y, old_y])
            self.opt.zero_grad()
            loss = self.loss(self.net(x), y)
            loss.backward()
            self.opt.step()
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return loss.item()
