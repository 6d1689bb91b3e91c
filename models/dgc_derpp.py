"""DGC on DER++."""

from __future__ import annotations

from models.derpp import Derpp
from models.utils.dgc_mixin import DgcMixin


class DgcDerpp(DgcMixin, Derpp):
    """Dark Experience Replay ++ with Dynamic Gradient Calibration (Lin et al. 2024): the paper's DGC-DER++."""

    NAME = "dgc_derpp"
    COMPATIBILITY = ["class-il", "task-il", "domain-il", "general-continual"]
    DGC_DRAW = 1  # the first draw is for the stored logits
    DGC_JOINED = False

    def dgc_weights(self, stream: int, replayed: int) -> tuple[float, float]:
        return self.dgc_separate_weights(self.args.beta)
