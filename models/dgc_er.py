"""DGC on Experience Replay."""

from __future__ import annotations

from models.er import Er
from models.utils.dgc_mixin import DgcMixin


class DgcEr(DgcMixin, Er):
    """Experience Replay with Dynamic Gradient Calibration (Lin et al. 2024): the paper's DGC-ER."""

    NAME = "dgc_er"
    COMPATIBILITY = ["class-il", "task-il", "domain-il", "general-continual"]
    DGC_JOINED = True
