"""DGC on X-DER."""

from __future__ import annotations

from models.utils.dgc_mixin import DgcMixin
from models.xder import XDer


class DgcXDer(DgcMixin, XDer):
    """X-DER with Dynamic Gradient Calibration (Lin et al. 2024): the paper's DGC-XDER."""

    NAME = "dgc_xder"
    COMPATIBILITY = ["class-il", "task-il"]
    DGC_DRAW = 1  # the first draw is for the stored logits

    def dgc_weight(self, stream: int, replayed: int) -> float:
        return self.args.beta
