"""Joint training on all tasks at once, shuffled: the upper bound."""

from __future__ import annotations

from typing import Any

from models.sgd import Sgd
from utils.args import ArgumentParser
from utils.errors import UsageError


class Joint(Sgd):
    """Training on the data of all tasks at once, as if there were no sequence: the upper bound.

    It trains for `--n_epochs` over everything, so as many steps as a sequential run in all, and knows one row of the
    accuracy matrix, the last: FAA is defined, FAIA and forgetting are not.
    """

    NAME = "joint"
    COMPATIBILITY = ["class-il", "task-il", "domain-il"]

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        parser.set_defaults(joint=True)
        return parser

    def __init__(self, backbone: Any, loss: Any, args: Any, transform: Any, dataset: Any = None):
        if not args.joint:
            raise UsageError("--joint 0: the model joint trains on all tasks at once; use --model sgd for a sequence")
        super().__init__(backbone, loss, args, transform, dataset)
