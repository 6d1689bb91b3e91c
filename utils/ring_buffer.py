"""Mammoth's name for `utils.mammoth.ring_buffer`."""

from utils.mammoth.ring_buffer import RingBuffer

__all__ = ["RingBuffer"]
