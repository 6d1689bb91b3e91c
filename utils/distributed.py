"""Mammoth's name for `utils.mammoth.distributed`."""

from utils.mammoth.distributed import CustomDP, make_ddp, make_dp, wait_for_master

__all__ = ["CustomDP", "make_ddp", "make_dp", "wait_for_master"]
