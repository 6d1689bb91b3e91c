"""Mammoth's wrappers for several GPUs, by their names: a run here uses one device (`--distributed no`)."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import nn

from utils.errors import UsageError


class CustomDP(nn.DataParallel):
    """What `isinstance` asks for; none is ever made."""

    def __init__(self, *_: Any, **__: Any):
        make_dp()


def make_dp(*_: Any) -> NoReturn:
    raise UsageError("--distributed dp is not possible: a run uses one device; reproduce.py runs several at once")


def make_ddp(*_: Any) -> NoReturn:
    raise UsageError("--distributed ddp is not possible: a run uses one device; reproduce.py runs several at once")


def wait_for_master() -> None:
    """There is no other process to wait for."""
