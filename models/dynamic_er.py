"""Dynamic ER: a new feature extractor for every task, trained on its images and those in the buffer."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.dynamic_er_utils.expandable_net import ExpandableNet, align_new_classes
from models.utils.exemplars import append_exemplars, refill_by_herding, require_own_classes
from models.utils.replay import ReplayModel, to_input
from utils.args import ArgumentParser, add_rehearsal_args, number
from utils.batch_norm import network_mode


class DynamicEr(ReplayModel):
    """Dynamically Expandable Representation (Yan et al. 2021), without masks and pruning, as PyCIL has it.

    Task t of c classes, after P earlier ones, adds the extractor φ_t, which starts as a copy of φ_{t−1}; φ₁ … φ_{t−1}
    are frozen. The head H on [φ₁, …, φ_t] keeps the weights that it had; A is a new head on φ_t. Over the task's images
    and the whole buffer, merged and shuffled,

        L = CE(H(φ₁(x), …, φ_t(x)), y) + CE(A(φ_t(x)), max(y − P + 1, 0))     (the first term alone in task 1)

    A tells the new classes apart from one another and from all old ones together. At the end of a task t > 1 the
    new classes' rows of H are scaled to the mean norm of the old ones, their biases left alone; the buffer then keeps
    ⌊M / (P + c)⌋ images of each class in herding order (eval mode, un-augmented, features on the unit sphere).

    Ours: A does not exist in task 1, where it has nothing to do. Nothing is drawn from the buffer batch by batch:
    `--minibatch_size` is for diagnostics (`--dgc_diagnostics`) and for DGC.
    """

    NAME = "dynamic_er"
    NEEDS_IMAGES = "it adds a feature extractor with every task"
    COMPATIBILITY = ["class-il", "task-il"]

    net: ExpandableNet

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        add_rehearsal_args(parser)
        parser.add_argument(
            "--optim_wd_later", type=number(float, 0), help="weight decay from task 2 on; --optim_wd by default"
        )
        return parser

    @classmethod
    def check_args(cls, args: Any) -> None:
        if args.buffer_size < args.num_classes:
            raise ValueError(
                f"--buffer_size {args.buffer_size} has no room for an image of each of the {args.num_classes} classes, "
                f"which {cls.NAME} keeps; use at least {args.num_classes}"
            )

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        super().__init__(ExpandableNet(backbone), loss, args, transform, dataset)
        require_own_classes(self)

    def get_parameters(self) -> Any:
        return [p for p in self.net.parameters() if p.requires_grad]

    def get_optimizer(self, params: Any = None, lr: float | None = None) -> torch.optim.Optimizer | None:
        optimizer = super().get_optimizer(params, lr)
        if optimizer is not None and self.current_task and self.args.optim_wd_later is not None:
            for group in optimizer.param_groups:
                group["weight_decay"] = self.args.optim_wd_later
        return optimizer

    def begin_task(self, dataset: Any) -> None:
        self.net.grow(self.n_classes_current_task, self.random_stream("dynamic_er"))
        self.opt = self.get_optimizer()  # the one made before this hook knows nothing of the new parameters
        append_exemplars(dataset.train_loader.dataset, self.buffer)

    def observe(
        self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None
    ) -> dict[str, Tensor]:
        self.opt.zero_grad()
        outputs, features = self.net(inputs, returnt="full")
        loss_main = self.loss(outputs, labels)
        loss_auxiliary = torch.zeros((), device=self.device)
        if self.net.auxiliary is not None:
            old_or_new = (labels - self.n_past_classes + 1).clamp(min=0)
            loss_auxiliary = self.loss(self.net.auxiliary(features[-1]), old_or_new)
        loss = loss_main + loss_auxiliary
        loss.backward()
        self.opt.step()
        terms = {"loss": loss, "loss_main": loss_main, "loss_auxiliary": loss_auxiliary}
        return {name: term.detach() for name, term in terms.items()}

    def forward(self, x: Tensor) -> Tensor:
        """Logits of all classes: −∞ for those that are still to come, which have no output yet."""
        outputs = self.net(x)
        return F.pad(outputs, (0, self.num_classes - outputs.shape[1]), value=-math.inf)

    def end_task(self, dataset: Any) -> None:
        images, past, seen = dataset.train_loader.dataset, self.n_past_classes, self.n_seen_classes
        images.drop_appended()
        if past:
            align_new_classes(self.net.classifier, past)
        with network_mode(self.net, training=False):
            quota = self.buffer.buffer_size // seen
            refill_by_herding(self.buffer, images, range(past, seen), quota, self._features_of)

    def _features_of(self, images: Tensor) -> Tensor:
        return self.net(to_input(images, self.dataset.get_batch_transform(augment=False)), returnt="features")
