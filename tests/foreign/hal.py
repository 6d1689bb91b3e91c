"""HAL: a ring for each task, a second network, and anchors that are learnt at the end of a task."""

import numpy as np
import torch
import torch.nn.functional as F

from backbone import get_backbone
from datasets import get_dataset
from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.ring_buffer import RingBuffer


class Anchors(ContinualModel):
    NAME = "hal"
    COMPATIBILITY = ["class-il", "domain-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument("--hal_lambda", type=float, default=0.1)
        parser.add_argument("--beta", type=float, default=0.5)
        parser.add_argument("--steps_on_anchors", type=int, default=5)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = RingBuffer(self.args.buffer_size, get_dataset(args).N_TASKS, self.device)
        self.spare = get_backbone(args).to(self.device)
        self.anchors = []
        self.mean_features = None

    def end_task(self, dataset):
        for label in np.unique(dataset.train_loader.dataset.targets):
            self.anchors.append(self.learn_anchor(int(label), next(iter(dataset.train_loader))[0]))
        self.buffer.num_seen_examples = 0
        self.buffer.task_number = self.current_task + 1

    def learn_anchor(self, label, batch):
        anchor = batch[:1].clone().requires_grad_()
        self.spare.set_params(self.net.get_params().data.clone())
        for _ in range(self.args.steps_on_anchors):
            features = self.net(anchor, returnt="features")
            before = F.cross_entropy(self.net(anchor), torch.tensor([label]))
            after = F.cross_entropy(self.spare(anchor), torch.tensor([label]))
            objective = after - before - self.args.hal_lambda * (features.mean(0) - self.mean_features).norm()
            (step,) = torch.autograd.grad(objective, anchor)
            anchor.data += self.args.lr * step
        return anchor.detach(), label

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        x, y = inputs, labels
        if not self.buffer.is_empty():
            old_x, old_y = self.buffer.get_data(self.args.minibatch_size, transform=self.transform, device=self.device)
            x, y = torch.cat([x, old_x]), torch.cat([y, old_y])
        start = self.net.get_params().data.clone()
        self.opt.zero_grad()
        loss = self.loss(self.net(x), y)
        loss.backward()
        self.opt.step()
        if self.anchors:
            points = torch.cat([anchor for anchor, _ in self.anchors])
            with torch.no_grad():
                ahead = self.net(points)
            self.net.set_params(start)
            self.opt.zero_grad()
            total_loss = self.loss(self.net(x), y) + self.args.hal_lambda * F.mse_loss(self.net(points), ahead)
            total_loss.backward()
            self.opt.step()
        with torch.no_grad():
            features = self.net(inputs, returnt="features").mean(0)
        old = features if self.mean_features is None else self.mean_features
        self.mean_features = self.args.beta * old + (1 - self.args.beta) * features
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return loss.item()
