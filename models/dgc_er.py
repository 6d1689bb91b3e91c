"""DGC on Experience Replay."""

from __future__ import annotations

from models.er import Er
from models.utils.dgc_mixin import DgcMixin


class DgcEr(DgcMixin, Er):
    """Experience Replay with Dynamic Gradient Calibration (Lin et al. 2024): the paper's DGC-ER."""

    NAME = "dgc_er"
    COMPATIBILITY = ["class-il", "task-il", "domain-il", "general-continual"]

    def dgc_weight(self, stream: int, replayed: int) -> float:
        """ER's mean over one concatenated batch, or the paper's (t−1)/t (eq. 15)."""
        if getattr(self.args, "replay_weight", "batch") == "tasks":
            return self.past_share()
        return super().dgc_weight(stream, replayed)
