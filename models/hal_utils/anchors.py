"""HAL's anchors, learned images of each class, which are made at the end of its task, and its buffer."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.hal_utils.portions import TaskPortions
from models.utils.exemplars import require_own_classes
from models.utils.replay import ReplayModel
from utils.augmentations import to_device
from utils.batch_norm import network_mode
from utils.errors import UsageError

ANCHOR_STEPS = 100


class AnchorModel(ReplayModel):
    """Holds anchors, the running mean feature φ̄ and the buffer; the objective is in the text of `Hal`."""

    anchors: Tensor
    mean_features: Tensor

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        super().__init__(backbone, loss, args, transform, dataset)
        require_own_classes(self)
        # A row per class; those of tasks to come are blank.
        shape = (self.num_classes, self.dataset.CHANNELS, *self.dataset.SIZE)
        self.anchors = torch.zeros(shape, device=self.device)
        self.mean_features = torch.zeros(self.net.feature_dim, device=self.device)  # φ̄

    def make_buffer(self) -> Any:
        """A ring of equal portions per task, or a reservoir."""
        ring, size, tasks = self.args.hal_memory == "ring", self.args.buffer_size, self.n_tasks
        if size < (2 * tasks if ring else 2):  # fine-tuning needs two images, since BatchNorm can't normalise one
            owner, enough = (f"each of the {tasks} tasks", 2 * tasks) if ring else ("the buffer", 2)
            raise UsageError(f"--buffer_size {size} leaves {owner} less than two images; use at least {enough}")
        if ring:
            return TaskPortions(size, tasks, self.device, self.random_stream("buffer"), self.dataset.image_dtype)
        return super().make_buffer()

    def end_task(self, dataset: Any) -> None:
        classes = torch.arange(self.n_past_classes, self.n_seen_classes, device=self.device)
        shape, dtype = (len(classes), *self.anchors.shape[1:]), self.anchors.dtype
        noise = torch.rand(shape, generator=self.random_stream("hal"), dtype=dtype)
        anchors, finetuned = to_device(noise, self.device), self.finetuned()
        with network_mode(self.net, training=False):
            for _ in range(ANCHOR_STEPS):
                anchors.requires_grad_()
                # The gradient of the sum is that of each anchor's own objective.
                (gradient,) = torch.autograd.grad(self.anchor_objective(anchors, classes, finetuned).sum(), anchors)
                anchors = anchors.detach() - self.args.lr * gradient
        self.anchors[self.n_past_classes : self.n_seen_classes] = anchors

    def anchor_objective(self, anchors: Tensor, classes: Tensor, finetuned: nn.Module) -> Tensor:
        """For each anchor CE(e, y; θ) − CE(e, y; θ_M) + γ · ‖φ_θ(e) − φ̄‖²."""
        outputs, features = self.net(anchors, returnt="both")
        now = F.cross_entropy(outputs, classes, reduction="none")
        later = F.cross_entropy(finetuned(anchors), classes, reduction="none")
        return now - later + self.args.gamma * (features - self.mean_features).square().sum(1)

    def finetuned(self) -> nn.Module:
        """θ_M, in eval mode: a copy of the network after plain SGD on the buffer, augmented, in random order."""
        net, size = copy.deepcopy(self.net).train(), max(self.args.minibatch_size, 2)
        parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
        order = torch.randperm(len(self.buffer), generator=self.random_stream("hal"))
        if self.args.hal_finetune == "batch":
            order = order[:size]
        # No stray last batch: all have `size` images or a few more.
        for rows in order.tensor_split(max(len(order) // size, 1)):
            if len(rows) == 0:  # nothing was stored: the task was passed over
                break
            images, labels = self.buffer.get_data_by_index(rows, self.transform, self.device)
            gradients = torch.autograd.grad(self.loss(net(images), labels), parameters)
            with torch.no_grad():
                torch._foreach_sub_(parameters, gradients, alpha=self.args.lr)
        return net.eval()
