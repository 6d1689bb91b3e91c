"""BiC: exemplars join the training set, a part of it is held out, and evaluation corrects the newest classes."""

from copy import deepcopy

import torch
import torch.nn.functional as F

from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.batch_norm import bn_track_stats
from utils.buffer import Buffer, icarl_replay


class BiasCorrection(ContinualModel):
    NAME = "bic"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument("--bic_epochs", type=int, default=20)
        parser.add_argument("--valset_split", type=float, default=0.1)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size)
        self.sizes = []

    def begin_task(self, dataset):
        own = len(dataset.train_loader.dataset)
        icarl_replay(self, dataset, val_set_split=self.args.valset_split)
        self.sizes.append((own, len(self.buffer), len(dataset.train_loader.dataset)))
        if hasattr(self, "correction"):
            del self.correction
        if self.current_task > 0:
            self.old_net = deepcopy(self.net.eval())
            self.net.train()

    def forward(self, x, anticipate=False):
        out = self.net(x)
        if hasattr(self, "correction"):
            # at evaluation the current task is already the next one
            last = (self.current_task - (0 if anticipate else 1)) * self.cpt
            before, new, after = out.tensor_split([last, last + self.cpt], dim=1)
            out = torch.cat([before, new * self.correction[0] + self.correction[1], after], dim=1)
        return out

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.opt.zero_grad()
        outputs = self.net(inputs)
        loss = self.loss(outputs[:, : self.n_seen_classes], labels, reduction="none").mean()
        if self.current_task > 0:
            old = slice(0, self.n_past_classes)
            with torch.no_grad():
                before = F.softmax(self.old_net(inputs)[:, old] / 2, dim=1)
            loss_kept = -(before * F.log_softmax(outputs[:, old] / 2, dim=1)).sum(1).mean()
            loss = loss + loss_kept
        loss.backward()
        self.opt.step()
        return loss.item()

    def end_task(self, dataset):
        if self.current_task > 0:
            self.net.eval()
            self.correction = torch.tensor([1.0, 0.0], device=self.device, requires_grad=True)
            opt = torch.optim.Adam([self.correction], lr=0.01)
            for _ in range(self.args.bic_epochs):
                for inputs, labels, _ in self.val_loader:
                    opt.zero_grad()
                    with bn_track_stats(self, False):
                        out = self.forward(inputs.to(self.device), anticipate=True)
                    self.loss(out[:, : self.n_seen_classes], labels.to(self.device)).backward()
                    opt.step()
            self.net.train()
        self.accs_before = dataset.evaluate(self, dataset)
        per_class = self.args.buffer_size // self.n_seen_classes
        kept = [] if self.buffer.is_empty() else [self.buffer.get_all_data()]
        self.buffer.empty()
        for images, labels in kept:
            self.store(images, labels, range(self.n_past_classes), per_class)
        batches = [(data[2], data[1]) for data in dataset.train_loader]
        images, labels = (torch.cat(parts) for parts in zip(*batches))
        self.store(images, labels, range(self.n_past_classes, self.n_seen_classes), per_class)

    def store(self, images, labels, classes, per_class):
        for label in classes:
            rows = (labels == label).nonzero().flatten()[:per_class]
            self.buffer.add_data(examples=images[rows], labels=labels[rows])
