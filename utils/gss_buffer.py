"""Mammoth's name for `utils.mammoth.gss_buffer`."""

from utils.mammoth.gss_buffer import Buffer

__all__ = ["Buffer"]
