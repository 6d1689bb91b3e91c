"""LUCIR: a cosine classifier that is replaced and imprinted, and an optimizer of its own with two groups."""

from copy import deepcopy

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from datasets import get_dataset
from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.batch_norm import bn_track_stats
from utils.buffer import Buffer, fill_buffer, icarl_replay
from utils.conf import create_seeded_dataloader


class CosineHead(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.randn(out_features, in_features) * 0.1)
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, x):
        return self.scale * F.linear(F.normalize(x), F.normalize(self.weight))


class Rebalancing(ContinualModel):
    NAME = "lucir"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument("--lamda_base", type=float, default=1.0)
        parser.add_argument("--fitting_epochs", type=int, default=2)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.dataset = get_dataset(args)
        self.buffer = Buffer(self.args.buffer_size)
        self.net.classifier = CosineHead(self.net.classifier.in_features, self.num_classes).to(self.device)
        self.old_net = None
        self.imprinted = []

    def begin_task(self, dataset):
        icarl_replay(self, dataset)
        if self.current_task > 0:
            with torch.no_grad():
                self.imprint(dataset)
            self.old_net = deepcopy(self.net.eval())
            self.net.train()
        head = list(self.net.classifier.parameters())
        body = [p for name, p in self.net.named_parameters() if not name.startswith("classifier")]
        self.opt = torch.optim.SGD([{"params": body}, {"params": head, "lr": self.args.lr / 2}], lr=self.args.lr)

    def imprint(self, dataset):
        """A new class begins in the direction of its mean feature."""
        loader = dataset.train_loader
        self.net.eval()
        part = deepcopy(loader.dataset)
        for label in range(self.n_past_classes, self.n_seen_classes):
            part.data = loader.dataset.data[np.asarray(loader.dataset.targets) == label]
            part.targets = np.zeros(part.data.shape[0])
            batches = create_seeded_dataloader(self.args, part, batch_size=self.args.batch_size, num_workers=0)
            features = torch.cat([F.normalize(self.net(d[0].to(self.device), returnt="features")) for d in batches])
            self.imprinted.append(len(features))
            self.net.classifier.weight[label] = F.normalize(features.mean(0), dim=0)
        self.net.train()
        torch.cuda.synchronize()

    def observe(self, inputs, labels, not_aug_inputs, logits=None, epoch=None, fitting=False):
        self.opt.zero_grad()
        features = self.net(inputs, returnt="features")
        loss = self.loss(self.net.classifier(features)[:, : self.n_seen_classes], labels)
        if self.old_net is not None and not fitting:
            with torch.no_grad():
                before = self.old_net(inputs, returnt="features")
            loss_kept = F.cosine_embedding_loss(features, before, torch.ones(len(inputs), device=self.device))
            loss = loss + self.args.lamda_base * loss_kept
        loss.backward()
        self.opt.step()
        return loss.item()

    def end_task(self, dataset):
        with bn_track_stats(self, False):
            fill_buffer(
                self.buffer,
                dataset,
                self.current_task,
                net=self.net,
                use_herding=True,
                normalize_features=True,
                extend_equalize_buffer=True,
            )
        held, self.opt = self.opt, torch.optim.SGD(self.net.classifier.parameters(), lr=self.args.lr / 10)
        for _ in range(self.args.fitting_epochs):
            images, labels = self.buffer.get_all_data(self.transform, device=self.device)
            for rows in torch.randperm(len(labels)).split(self.args.batch_size):
                self.observe(images[rows], labels[rows], None, fitting=True)
        self.opt = held
