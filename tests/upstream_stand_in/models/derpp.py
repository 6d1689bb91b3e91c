"""Dark experience replay ++."""

import torch.nn.functional as F

from models.utils.continual_model import ContinualModel
from utils.args import add_rehearsal_args
from utils.buffer import Buffer


class Derpp(ContinualModel):
    NAME = "derpp"
    COMPATIBILITY = ["class-il", "domain-il", "task-il", "general-continual"]

    @staticmethod
    def get_parser(parser):  # returns nothing
        add_rehearsal_args(parser)
        parser.add_argument("--alpha", type=float, required=True)
        parser.add_argument("--beta", type=float, required=True)

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset)
        self.buffer = Buffer(self.args.buffer_size)

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.opt.zero_grad()
        outputs = self.net(inputs)
        loss = self.loss(outputs, labels)
        if not self.buffer.is_empty():
            size, kwargs = self.args.minibatch_size, {"transform": self.transform, "device": self.device}
            images, _, logits = self.buffer.get_data(size, **kwargs)
            loss = loss + self.args.alpha * F.mse_loss(self.net(images), logits)
            images, targets, _ = self.buffer.get_data(size, **kwargs)
            loss = loss + self.args.beta * self.loss(self.net(images), targets)
        loss.backward()
        self.opt.step()
        self.buffer.add_data(examples=not_aug_inputs, labels=labels, logits=outputs.data)
        return {"loss": loss.item()}
