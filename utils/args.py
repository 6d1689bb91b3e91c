"""What a model says its flags with; Mammoth's files import these names from here. The work is done in `utils.cli`."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from utils.cli.parser import ArgumentParser
from utils.cli.values import binary_to_boolean_type, choice, number

__all__ = ["ArgumentParser", "Namespace", "add_rehearsal_args", "binary_to_boolean_type", "choice", "number"]


def add_rehearsal_args(parser: Any) -> None:
    """The flags of every method with a replay buffer."""
    group = parser.add_argument_group("rehearsal")
    group.add_argument(
        "--buffer_size", type=number(int, 1), required=True, help="images that the replay buffer may hold"
    )
    group.add_argument(
        "--minibatch_size", type=number(int, 1), help="images per step from the buffer; --batch_size by default"
    )
