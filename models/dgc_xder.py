"""DGC on X-DER."""

from __future__ import annotations

from models.utils.dgc_mixin import DgcMixin
from models.xder import XDer


class DgcXDer(DgcMixin, XDer):
    """X-DER with Dynamic Gradient Calibration (Lin et al. 2024): the paper's DGC-XDER."""

    NAME = "dgc_xder"
    COMPATIBILITY = ["class-il", "task-il"]
    DGC_DRAW = 1  # the first draw is for the stored logits
    DGC_JOINED = False

    def dgc_weights(self, stream: int, replayed: int) -> tuple[float, float]:
        return self.dgc_separate_weights(self.args.beta)

    def dgc_columns(self, current: bool = False) -> slice:
        """Stream images compete within the current head, replayed ones among past classes."""
        return slice(self.n_past_classes, self.n_seen_classes) if current else slice(0, self.n_past_classes)
