"""Dark experience replay: a buffer of images and logits, without labels."""

import torch.nn.functional as F

from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.buffer import Buffer


class DarkReplay(ContinualModel):
    NAME = "der"
    COMPATIBILITY = ["class-il", "domain-il", "task-il", "general-continual"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument("--alpha", type=float, required=True, help="weight of the stored logits")
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size)

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.opt.zero_grad()
        now = self.net(inputs)
        loss = self.loss(now, labels)
        if not self.buffer.is_empty():
            old_x, old_logits = self.buffer.get_data(
                self.args.minibatch_size, transform=self.transform, device=self.device
            )
            loss_logits = F.mse_loss(self.net(old_x), old_logits)
            loss = loss + self.args.alpha * loss_logits
        loss.backward()
        self.opt.step()
        self.buffer.add_data(examples=not_aug_inputs, logits=now.data)
        return loss.item()
