"""LwF: attaches logits to the training set, which come back as an argument of observe."""

import torch
import torch.nn.functional as F

from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser


class WithoutForgetting(ContinualModel):
    NAME = "lwf"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        parser.add_argument("--alpha", type=float, default=0.5)
        parser.add_argument("--softmax_temp", type=float, default=2)
        return parser

    def begin_task(self, dataset):
        images, training = dataset.train_loader.dataset, self.training
        self.eval()
        if self.current_task > 0:
            self.warm_up_classifier(dataset)
        logits = []
        with torch.no_grad():
            for start in range(0, images.data.shape[0], self.args.batch_size):
                rows = range(start, min(start + self.args.batch_size, images.data.shape[0]))
                batch = torch.stack([images.__getitem__(row)[2] for row in rows])
                logits.append(self.net(batch.to(self.device)).cpu())
        images.logits = torch.cat(logits)
        images.extra_return_fields += ("logits",)
        self.train(training)

    def warm_up_classifier(self, dataset):
        opt = torch.optim.SGD(self.net.classifier.parameters(), lr=self.args.lr)
        new = slice(self.n_past_classes, self.n_seen_classes)
        for _ in range(self.args.n_epochs):
            for data in dataset.train_loader:
                with torch.no_grad():
                    features = self.net(data[0].to(self.device), returnt="features")
                opt.zero_grad()
                self.loss(self.net.classifier(features)[:, new], data[1].to(self.device) - new.start).backward()
                opt.step()

    def observe(self, inputs, labels, not_aug_inputs, logits=None, epoch=None):
        self.opt.zero_grad()
        outputs = self.net(inputs)
        loss = self.loss(outputs[:, : self.n_seen_classes], labels)
        if self.current_task > 0:
            old, hot = slice(0, self.n_past_classes), self.args.softmax_temp
            before = F.softmax(logits[:, old].to(self.device) / hot, dim=1)
            loss_kept = -(before * F.log_softmax(outputs[:, old] / hot, dim=1)).sum(1).mean()
            loss = loss + self.args.alpha * loss_kept
        loss.backward()
        self.opt.step()
        return loss.item()
