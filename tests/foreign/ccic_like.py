"""What learning with few labels asks of a framework: unlabelled images, rings, draws without a task, mixed images."""

import torch
import torch.nn.functional as F

from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.buffer import Buffer
from utils.mixup import mixup
from utils.ring_buffer import RingBuffer
from utils.triplet import batch_hard_triplet_loss, negative_only_triplet_loss


class Interpolating(ContinualModel):
    NAME = "ccic_like"
    COMPATIBILITY = ["class-il", "task-il", "cssl"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument("--knn_k", "--k", dest="knn_k", type=int, default=2)
        parser.set_defaults(optimizer="adam")
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size)
        self.sup_ring = RingBuffer(self.args.batch_size)
        self.unsup_ring = RingBuffer(self.args.batch_size)
        self.unlabelled = self.masked = 0

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        known = labels != -1
        self.unlabelled += int((~known).sum())
        self.opt.zero_grad()
        loss = torch.zeros((), device=self.device)
        if known.any():
            one_hot = F.one_hot(labels[known], self.num_classes).float()
            order = torch.randperm(len(one_hot))
            x, soft = mixup([(inputs[known], inputs[known][order]), (one_hot, one_hot[order])], 1)
            loss = loss - (soft * F.log_softmax(self.net(x), dim=1)).sum(1).mean()
            self.sup_ring.add_data(not_aug_inputs[known], labels[known])
        if not self.sup_ring.is_empty():
            x, y = self.sup_ring.get_data(8, transform=self.transform, device=self.device)
            triplet_loss = batch_hard_triplet_loss(y, self.net(x, returnt="features"), self.args.knn_k)
            loss = loss if triplet_loss is None else loss + 0.1 * triplet_loss
        if (~known).any():
            self.unsup_ring.add_data(not_aug_inputs[~known])
            (x,) = self.unsup_ring.get_data(8)
            assert x.shape[1:] == inputs.shape[1:]
        if self.current_task > 0:
            old, y = self.buffer.get_data(
                self.args.minibatch_size,
                mask_task_out=self.current_task,
                transform=self.transform,
                cpt=self.cpt,
                device=self.device,
            )
            self.masked += int((y >= self.n_past_classes).sum())
            loss = loss + self.loss(self.net(old), y)
            negative_loss = negative_only_triplet_loss(y, self.net(old, returnt="features"), self.args.knn_k)
            loss = loss if negative_loss is None else loss + 0.1 * negative_loss
        if loss.requires_grad:
            loss.backward()
            self.opt.step()
        if known.any():
            self.buffer.add_data(examples=not_aug_inputs[known], labels=labels[known])
        return loss.item()
