"""iCaRL: exemplars chosen by herding, distillation of past outputs, and classification by the nearest mean."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.utils.exemplars import append_exemplars, compute_features, refill_by_herding, require_own_classes
from models.utils.replay import ReplayModel, to_input
from utils.args import ArgumentParser, add_rehearsal_args, binary_to_boolean_type
from utils.batch_norm import network_mode
from utils.errors import UsageError

HALVING_CHUNK = 32  # exemplars, in the class means of `--icarl_reference 1`


class ICarl(ReplayModel):
    """Incremental Classifier and Representation Learning (Rebuffi et al. 2017).

    The exemplars of the P past classes join the training set of a task, and every batch x, y of it has the loss

        mean over images and the S seen outputs of BCE(σ(f(x)), q)
        q = σ(f_old(x)) for the P past outputs, the one-hot y for the current ones

    f_old is the network as the task found it, in eval mode: a past image has no label of its own. At the end of the
    task each seen class has ⌊M/S⌋ exemplars: past classes keep their first ones, new ones are herded. An image belongs
    to the class whose exemplars have the mean feature nearest to its own. Features and means have norm 1.

    Weight decay is the optimizer's (`--optim_wd`). `--icarl_reference 1` is Mammoth until 2023: features have their own
    norm in herding, means and prediction, and a class mean is the first 32 exemplars' mean, then halfway from there to
    that of the next 32, and so on, so that the last count most.

    Our choice: while a task lasts, its classes have no exemplars yet, and are evaluated by the mean of all their
    training images. Before the first task the outputs of the network are the prediction.
    """

    NAME = "icarl"
    COMPATIBILITY = ["class-il", "task-il"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument(
            "--icarl_reference",
            type=binary_to_boolean_type,
            default=False,
            help="1: features of any norm, and class means that favour the last exemplars, as Mammoth until 2023",
        )
        return parser

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        super().__init__(backbone, loss, args, transform, dataset)
        require_own_classes(self)
        if args.buffer_size < self.num_classes:
            raise UsageError(
                f"--buffer_size {args.buffer_size}: icarl keeps an exemplar of each class, and {self.dataset.NAME} has "
                f"{self.num_classes}; use at least {self.num_classes}"
            )
        self.n_herded = 0  # classes that have exemplars
        self.old_net: nn.Module | None = None
        self.class_means: Tensor | None = None  # of the present parameters, once they were asked for

    # -- a step ------------------------------------------------------------------------------------------------

    def begin_task(self, dataset: Any) -> None:
        self.class_means = None
        if self.n_past_classes:
            self.old_net = copy.deepcopy(self.net).eval().requires_grad_(False)
        append_exemplars(dataset.train_loader.dataset, self.buffer)

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None) -> Tensor:
        past, seen = self.n_past_classes, self.n_seen_classes
        self.class_means = None
        targets = F.one_hot(labels, seen).float()
        if self.old_net is not None:
            with torch.no_grad():
                targets[:, :past] = self.old_net(inputs)[:, :past].float().sigmoid()
        self.opt.zero_grad()
        loss = F.binary_cross_entropy_with_logits(self.net(inputs)[:, :seen].float(), targets)
        loss.backward()
        self.opt.step()
        return loss.detach()

    # -- exemplars ---------------------------------------------------------------------------------------------

    def end_task(self, dataset: Any) -> None:
        images, seen = dataset.train_loader.dataset, self.n_seen_classes
        self.class_means = self.old_net = None
        images.drop_appended()
        classes, quota = range(self.n_past_classes, seen), self.buffer.buffer_size // seen
        with network_mode(self.net, training=False):
            normalize = not self.args.icarl_reference
            refill_by_herding(self.buffer, images, classes, quota, self._features_of, normalize)
        self.n_herded = seen

    def _features_of(self, images: Tensor) -> Tensor:
        return self.net(to_input(images, getattr(self, "normalization_transform", None)), returnt="features")

    # -- prediction --------------------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        """Minus the distance to each class mean; −∞ for a class not met yet."""
        if self.n_seen_classes < 0:
            return self.net(x)
        if self.class_means is None:
            self.class_means = self._compute_class_means()
        features = self.net(x, returnt="features").float()
        if not self.args.icarl_reference:
            features = F.normalize(features, dim=1)
        distances = torch.cdist(features, self.class_means, compute_mode="donot_use_mm_for_euclid_dist")
        return F.pad(-distances, (0, self.num_classes - len(self.class_means)), value=-torch.inf)

    @torch.no_grad()
    def _compute_class_means(self) -> Tensor:
        """[seen classes, features], of the exemplars or, of classes that have none yet, of the training images."""
        stored, task, sources = len(self.buffer), self.dataset.train_loader.dataset, []
        if self.n_herded:
            sources.append((self.buffer.examples[:stored], self.buffer.labels[:stored]))
        if self.n_herded < self.n_seen_classes:
            sources.append((task.batch(slice(task.n_own)), task.targets[: task.n_own]))
        images, labels = (torch.cat([part.to(self.device) for part in parts]) for parts in zip(*sources, strict=True))
        reference = self.args.icarl_reference
        with network_mode(self.net, training=False):
            features = compute_features(images, self._features_of, normalize=not reference)
        per_class = [features[labels == label] for label in range(self.n_seen_classes)]
        means = torch.stack([halving_mean(rows) if reference else rows.mean(0) for rows in per_class])
        means = means if reference else F.normalize(means, dim=1)
        for label, rows in enumerate(per_class):
            if not len(rows):
                means[label] = torch.inf  # no mean: never the nearest
        return means


def halving_mean(features: Tensor) -> Tensor:
    """The mean of the first chunk of rows; each further chunk has as much weight as all before it together."""
    first, *others = (chunk.mean(0) for chunk in features.split(HALVING_CHUNK))
    for mean in others:
        first = (first + mean) / 2
    return first
