"""ER with loss-aware balanced reservoir sampling, a decaying rate, and a bias correction after each task."""

import torch

from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.augmentations import apply_transform
from utils.buffer import Buffer


class TricksOfReplay(ContinualModel):
    NAME = "er_tricks"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument("--elrd", type=float, default=0.999)
        parser.add_argument("--bic_epochs", type=int, default=5)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(self.args.buffer_size, device=self.device, sample_selection_strategy="labrs")
        self.normalize = self.dataset.get_normalization_transform()
        self.corrections = torch.zeros(2, self.num_classes, device=self.device)

    def forward(self, x):
        scale, shift = self.corrections
        return self.net(x) * (1 + scale) + shift

    def end_task(self, dataset):
        params = torch.zeros(2, device=self.device, requires_grad=True)
        new = slice(self.n_past_classes, self.n_past_classes + self.n_classes_current_task)
        opt = torch.optim.SGD([params], lr=0.01)
        self.net.eval()
        for _ in range(self.args.bic_epochs):
            x, y = self.buffer.get_data(self.args.minibatch_size, device=self.device)
            with torch.no_grad():
                outputs = self.net(apply_transform(x, self.normalize))[:, : self.n_seen_classes]
            adjusted = torch.cat([outputs[:, : new.start], outputs[:, new] * (1 + params[0]) + params[1]], 1)
            opt.zero_grad()
            self.loss(adjusted, y).backward()
            opt.step()
        self.net.train()
        self.corrections.zero_()
        self.corrections[:, new] = params.data[:, None]

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        x, y, indexes = inputs, labels, None
        if not self.buffer.is_empty():
            indexes, old_x, old_y = self.buffer.get_data(
                self.args.minibatch_size, transform=self.transform, return_index=True, device=self.device
            )
            x, y = torch.cat([x, old_x]), torch.cat([y, old_y])
        self.opt.zero_grad()
        losses = self.loss(self.net(x), y, reduction="none")
        loss = losses.mean()
        loss.backward()
        self.opt.step()
        scores = -losses.detach()
        if indexes is not None:
            self.buffer.sample_selection_fn.update(indexes, scores[len(labels) :])
        self.buffer.add_data(examples=not_aug_inputs, labels=labels, sample_selection_scores=scores[: len(labels)])
        for group in self.opt.param_groups:
            group["lr"] *= self.args.elrd
        return loss.item()
