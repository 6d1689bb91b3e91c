"""DGC on Dynamic ER."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from models.dynamic_er import DynamicEr
from models.utils.dgc_mixin import Batch, DgcMixin, Vector

IGNORED = -100  # the label that PyTorch's cross-entropy leaves out of its mean


def at_hand(labels: Tensor) -> bool:
    """Whether their values can be looked at without making the host wait for a GPU."""
    return labels.device.type == "cpu"


def past_images(images: Tensor, labels: Tensor, n_past: int) -> Batch:
    """The images of past classes in a batch; if it can't be told which they are, all, with other labels IGNORED.

    If there are none then all labels stay, because the mean over nothing is NaN: their share, 0, will be the factor.
    """
    past = labels < n_past
    if at_hand(labels):
        return images[past], labels[past]
    return images, torch.where(past | ~past.any(), labels, IGNORED)


class DgcDynamicEr(DgcMixin, DynamicEr):
    """Dynamic ER with Dynamic Gradient Calibration (Lin et al. 2024): the paper's DGC-Dynamic ER.

    No code of it was published; how DGC meets a growing network and a merged stream are choices of ours.

    Γ' covers what is trained and has a past: the newest extractor φ_t and the head H; not the auxiliary head, which is
    new in each task. When the network grows, φ_t takes over the part of φ_{t−1}, of which it is a copy, entry by entry,
    and H's part is padded with zeros for new rows and columns. That is no gradient of the grown network, where φ_t acts
    through columns of H that are still random; it is what the last task has left. `released` carries its running sum
    in the same way, and takes the grown network as θ̃: the old θ̃ has another shape. g is the cross-entropy of H.

    x̄ is the images of past classes in a batch and w their share of it, as in the base's mean over the batch. So x̄ is a
    draw from memory, of random size. `--minibatch_size` is the size of the draws for stage updates and `released`.
    """

    NAME = "dgc_dynamic_er"
    COMPATIBILITY = ["class-il", "task-il"]

    @classmethod
    def check_args(cls, args: Any) -> None:
        super().check_args(args)
        if args.dgc_current:
            raise ValueError(
                "--dgc_current 1 needs batches of the current task alone, but Dynamic ER mixes memory into them: "
                "leave it out"
            )

    def dgc_replay_weight(self) -> Any:
        past = self._dgc_stream[1] < self.n_past_classes  # type: ignore[index]
        return int(past.sum()) / len(past) or None if at_hand(past) else past.float().mean()

    def dgc_replay_batch(self) -> Batch:
        images, labels = self._dgc_stream  # type: ignore[misc]
        images, labels = past_images(images, labels, self.n_past_classes)
        return self._dgc_ready(images), labels

    def dgc_carry(self, vector: Vector) -> Vector:
        newest = len(self.net.extractors) - 1
        old, new = f"extractors.{newest - 1}.", f"extractors.{newest}."
        return {new + name.removeprefix(old) if name.startswith(old) else name: v for name, v in vector.items()}

    def dgc_copy(self) -> nn.Module:
        """θ̃ shares the frozen extractors with θ: all that would be copied, from the third task on, but one."""
        return copy.deepcopy(self.net, {id(frozen): frozen for frozen in self.net.extractors[:-1]})

    def _dgc_names(self) -> list[str]:
        return [name for name in super()._dgc_names() if not name.startswith("auxiliary.")]
