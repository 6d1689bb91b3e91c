"""Replay for wrong labels: a memory chosen by losses, replayed in every second epoch, learnt at the end of a task."""

import torch

from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.augmentations import cutmix_data
from utils.buffer import Buffer
from utils.conf import create_seeded_dataloader


class Alternating(ContinualModel):
    NAME = "aer_abs_like"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument("--sample_selection_strategy", choices=["reservoir", "lars", "abs"], default="abs")
        parser.add_argument("--buffer_fitting_epochs", type=int, default=2)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        strategy = self.args.sample_selection_strategy
        self.buffer = Buffer(self.args.buffer_size, self.device, sample_selection_strategy=strategy, dataset=dataset)
        self.replaying, self.fitted = None, 0
        self.epochs = []  # images of each

    def begin_epoch(self, epoch, dataset):
        self.replaying = self.current_task > 0 and epoch % 2 == 1
        self.epochs.append(0)

    def observe(self, inputs, labels, not_aug_inputs, epoch, true_labels):
        self.epochs[-1] += len(labels)
        y = labels
        if self.replaying:
            plain = self.dataset.get_normalization_transform()
            index, not_aug, old, old_y, _ = self.buffer.get_data(
                self.args.minibatch_size,
                transform=self.transform,
                return_index=True,
                return_not_aug=True,
                not_aug_transform=plain,
            )
            with torch.no_grad():
                scores = self.loss(self.net(not_aug.to(self.device)), old_y.to(self.device), reduction="none")
            self.buffer.sample_selection_fn.update(index, scores)
            inputs, y = torch.cat([inputs, old.to(self.device)]), torch.cat([labels, old_y.to(self.device)])
        self.opt.zero_grad()
        losses = self.loss(self.net(inputs), y, reduction="none")
        loss = losses.mean()
        loss.backward()
        self.opt.step()
        if not self.replaying:
            self.buffer.add_data(
                examples=not_aug_inputs, labels=labels, true_labels=true_labels, sample_selection_scores=losses.detach()
            )
        return loss.item()

    def end_task(self, dataset):
        """Steps of the framework's own optimizer, outside `observe`."""
        images, labels, _ = self.buffer.get_all_data(transform=self.transform, device=self.device)
        rows = torch.utils.data.TensorDataset(images, labels)
        for _ in range(self.args.buffer_fitting_epochs):
            for x, y in create_seeded_dataloader(self.args, rows, batch_size=32, shuffle=True, num_workers=0):
                x, y_a, y_b, lam = cutmix_data(x=x, y=y, alpha=1.0)
                self.opt.zero_grad()
                outputs = self.net(x)
                loss = lam * self.loss(outputs, y_a) + (1 - lam) * self.loss(outputs, y_b)
                loss.backward()
                self.opt.step()
                self.fitted += 1
