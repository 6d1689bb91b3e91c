"""ER with asymmetric cross-entropy: exchanges the classifier before the base constructor."""

import torch
from torch import nn

from models.utils.continual_model import ContinualModel
from utils import binary_to_boolean_type
from utils.args import ArgumentParser, add_rehearsal_args
from utils.buffer import Buffer


class AsymmetricReplay(ContinualModel):
    NAME = "er_ace"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument("--without_bias", type=binary_to_boolean_type, default=1)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        if args.without_bias:
            head = backbone.classifier
            backbone.classifier = nn.Linear(head.in_features, head.out_features, bias=False)
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size)
        self.met = torch.zeros(self.num_classes, dtype=torch.bool, device=self.device)

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.met[labels] = True
        logits = self.net(inputs)
        if self.current_task > 0:
            absent = self.met.clone()
            absent[labels] = False
            logits = logits.masked_fill(absent, -1e9)
        loss = self.loss(logits, labels)
        if self.current_task > 0 and len(self.buffer) > 0:
            old_x, old_y = self.buffer.get_data(self.args.minibatch_size, transform=self.transform, device=self.device)
            loss_replay = self.loss(self.net(old_x), old_y)
            loss = loss + loss_replay
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return loss.item()
