"""DGC on Dynamic ER."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from models.dynamic_er import DynamicEr
from models.utils.dgc_draws import Draw
from models.utils.dgc_gradients import ALL
from models.utils.dgc_mixin import DgcMixin

IGNORED = -100  # the label that PyTorch's cross-entropy leaves out of its mean


def at_hand(labels: Tensor) -> bool:
    """Whether their values can be looked at without making the host wait for a GPU."""
    return labels.device.type == "cpu"


class DgcDynamicEr(DgcMixin, DynamicEr):
    """Dynamic ER with Dynamic Gradient Calibration (Lin et al. 2024): the paper's DGC-Dynamic ER.

    No code of it was published; how DGC meets a growing network and a merged stream are choices made here.

    Γ' covers what is trained: the newest extractor φ_t and the head H; not the auxiliary head, which is new in each
    task. So are φ_t, which acts through columns of H that are still random, these columns, and the rows of new classes:
    at the start of a task the calibrator is zero there, and only old rows × old columns of H are calibrated. No vector
    is handed from φ_{t−1} to φ_t. g is the cross-entropy of H.

    x̄ is the images of past classes in a batch and w their share of it, as in the base's mean over the batch. So x̄ is a
    draw from the buffer, of random size; batches that DGC itself draws have the average size.
    `--minibatch_size` is the size of draws in the views `plain` and `raw`.
    """

    NAME = "dgc_dynamic_er"
    COMPATIBILITY = ["class-il", "task-il"]

    @classmethod
    def check_args(cls, args: Any) -> None:
        super().check_args(args)
        if args.dgc_current:
            raise ValueError(
                "--dgc_current 1 needs batches of the current task alone, but Dynamic ER mixes the buffer into them: "
                "leave it out"
            )

    def dgc_replay_weight(self) -> Any:
        past = self.dgc_stream[2] < self.n_past_classes  # type: ignore[index]
        return int(past.sum()) / len(past) or None if at_hand(past) else past.float().mean()

    def dgc_draw(self) -> Draw | None:
        """The images of past classes in the batch; on a GPU, without waiting for it, the whole batch, others IGNORED.

        If there are none then all labels stay, because the mean over nothing is NaN: their share, 0, is the factor.
        """
        inputs, plain, labels = self.dgc_stream  # type: ignore[misc]
        past = labels < self.n_past_classes
        if at_hand(labels):
            return Draw(inputs[past], labels[past], lambda: (plain[past], labels[past])) if past.any() else None
        known = torch.where(past | ~past.any(), labels, IGNORED)
        return Draw(inputs, known, lambda: (plain, known))

    def dgc_pass(self, inputs: Tensor, drawn: Tensor) -> tuple[Tensor, Any]:
        labels = self.dgc_stream[2]  # type: ignore[index]
        return inputs, labels < self.n_past_classes if at_hand(labels) else ALL

    def dgc_mix(self) -> tuple[int, int]:
        """As a batch of the task's images and the buffer, merged and shuffled, is composed on average."""
        stored, own, size = len(self.buffer), self.dgc_training_set().n_own, self.args.batch_size
        replayed = max(1, round(size * stored / (stored + own)))
        return size - replayed, replayed

    def dgc_copy(self) -> nn.Module:
        """θ̃ shares the frozen extractors with θ: all that would be copied, from the third task on, but one."""
        return copy.deepcopy(self.net, {id(frozen): frozen for frozen in self.net.extractors[:-1]})

    def dgc_features_frozen(self) -> bool:
        """What is calibrated of H are its columns on earlier extractors, which are frozen."""
        return True

    def dgc_names(self) -> list[str]:
        return [name for name in super().dgc_names() if not name.startswith("auxiliary.")]
