"""iCaRL: a classifier by class means over an unlimited buffer; exemplars join the training set."""

from copy import deepcopy

import torch
import torch.nn.functional as F

from datasets import get_dataset
from models.utils.continual_model import ContinualModel
from utils.args import ArgumentParser, add_rehearsal_args
from utils.batch_norm import bn_track_stats
from utils.buffer import Buffer, fill_buffer, icarl_replay


class ClassMeans(ContinualModel):
    NAME = "icarl"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument("--opt_wd", type=float, default=1e-5)
        return parser

    def __init__(self, backbone, loss, args, transform, dataset=None):
        args.optim_wd = args.opt_wd
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.dataset = get_dataset(args)
        self.buffer = Buffer(-1, device="cpu", sample_selection_strategy="unlimited")
        self.one_hot = torch.eye(self.cpt * self.n_tasks).to(self.device)
        self.old_net = None
        self.means = None

    def forward(self, x):
        if self.means is None:
            self.compute_class_means()
        features = F.normalize(self.net(x, returnt="features"))
        known = -torch.cdist(features, self.means)
        return torch.cat([known, torch.full((len(x), self.num_classes - known.shape[1]), -1e9)], dim=1)

    @torch.no_grad()
    def compute_class_means(self):
        with bn_track_stats(self, False):
            images, labels = self.buffer.get_all_data(self.normalization_transform, device=self.device)
            views = [images, images.flip(3)]  # a class mean is that of its images and their mirror images
            features = sum(F.normalize(self.net(view, returnt="features")) for view in views) / 2
        self.means = torch.stack([features[labels == label].mean(0) for label in self.classes_so_far])

    def begin_task(self, dataset):
        icarl_replay(self, dataset)

    def observe(self, inputs, labels, not_aug_inputs, logits=None, epoch=None):
        seen = labels.cpu() if not hasattr(self, "classes_so_far") else torch.cat([self.classes_so_far, labels.cpu()])
        self.register_buffer("classes_so_far", seen.unique())
        self.means = None
        wanted = self.one_hot[labels]
        if self.old_net is not None:
            with torch.no_grad():
                wanted[:, : self.n_past_classes] = torch.sigmoid(self.old_net(inputs))[:, : self.n_past_classes]
        self.opt.zero_grad()
        loss = F.binary_cross_entropy_with_logits(
            self.net(inputs)[:, : self.n_seen_classes], wanted[:, : self.n_seen_classes]
        )
        loss.backward()
        self.opt.step()
        return loss.item()

    def end_task(self, dataset):
        self.old_net = deepcopy(self.net.eval())
        self.net.train()
        fill_buffer(self.buffer, dataset, self.current_task, net=self.net, use_herding=True)
        self.means = None
