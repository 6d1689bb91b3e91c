"""DGC on Experience Replay."""

from __future__ import annotations

from models.er import Er
from models.utils.dgc_mixin import DgcMixin


class DgcEr(DgcMixin, Er):
    """Experience Replay with Dynamic Gradient Calibration (Lin et al. 2024): the paper's DGC-ER."""

    NAME = "dgc_er"
    COMPATIBILITY = ["class-il", "task-il", "domain-il", "general-continual"]
    DGC_JOINED = True

    def dgc_weights(self, stream: int, replayed: int) -> tuple[float, float]:
        """Those of ER's mean over one concatenated batch, or the paper's 1/t and (t−1)/t (eq. 15)."""
        by_tasks = getattr(self, "past_images", 0) and replayed
        return self.task_weights() if by_tasks else super().dgc_weights(stream, replayed)
