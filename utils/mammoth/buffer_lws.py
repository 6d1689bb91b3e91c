"""The buffer of Mammoth's LwS, which asks nothing of it that ours lacks; stands for `utils.buffer_lws`."""

from utils.buffer import Buffer

__all__ = ["Buffer"]
