"""What a flag is to a run. Its role is given where it is declared, and all that depends on it is asked of the role."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Role(Enum):
    """Whether a value is recorded (in `config.yaml`, and so repeated by `--resume`), hashed (part of the run's name),
    and handed on with the trained model (as a default of the run that starts from it by `--loadcheck`).
    """

    RESULT = "the numbers depend on it; every flag of a model, dataset or backbone", True, True, True
    RANGE = (
        "the part of the stream that a run is about: it differs between a run and its continuation",
        True,
        True,
        False,
    )
    PLACE = "where a run reads, writes, computes and reports: another one gives the same numbers", True, False, False
    PRESET = "stands for settings of the project: these are hashed instead", True, False, True
    FILE = "names a file of data; its content is hashed instead", True, False, True
    ORIGIN = "names a file of code or weights to begin with; its content is hashed instead", True, False, False
    FIXED = "a flag of Mammoth with one value here; hashed only where a plugin gives it another", True, True, True
    ONCE = "what a command does to a run, which is not repeated when the run is resumed", False, False, False
    DERIVED = "follows from flags, or describes the command or the machine", False, False, False

    def __init__(self, meaning: str, recorded: bool, hashed: bool, handed_on: bool):
        self.meaning, self.recorded, self.hashed, self.handed_on = meaning, recorded, hashed, handed_on


@dataclass(frozen=True)
class Declared:
    """All that is said about a flag beyond what argparse knows."""

    role: Role = Role.RESULT
    early: bool = False  # read before the others: which flags there are, or their defaults, depend on it
    layered: bool = True  # a YAML, or the model of --loadcheck, may give its default
    usual: Any = None  # the value that was the only one once: it is not hashed, so that earlier runs keep their names

    def hashed(self, value: Any) -> bool:
        """Whether a value is part of the run's name."""
        return self.role.hashed and (self.usual is None or value != self.usual)
