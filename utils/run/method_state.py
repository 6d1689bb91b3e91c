"""What another run needs to train the next task as this one would: the method and everything it draws from."""

from __future__ import annotations

import logging
from argparse import Namespace
from typing import Any
from weakref import ref

from utils.cli.config import declared_in
from utils.resume.rng import global_rng_state, set_global_rng_state
from utils.resume.state import pack, unpack
from utils.schedulers import TaskSchedule

PLAIN = (type(None), bool, int, float, str, list)


def method_flags(flags: dict[str, Any], args: Namespace) -> dict[str, Any]:
    """Flags that a model may change. Where a run reads and writes is up to neither a model nor a foreign file."""
    return {n: v for n, v in flags.items() if declared_in(args, n).role.hashed and isinstance(v, PLAIN)}


class MethodState:
    """The state of a model, of its learning-rate schedule, of the flags it has changed and of random generators."""

    def __init__(self, model: Any, dataset: Any, args: Namespace):
        self.model, self.dataset, self.args = model, dataset, args
        self.schedule = TaskSchedule(model, args)
        self._first_flags = dict(vars(args))
        self._uncaptured: list[str] = []  # parts of the model that can't be saved, and that a warning has named
        self._train_loaders: list[Any] = []  # of all tasks so far; weak references, because a model may let them go

    def know(self, train_loader: Any) -> None:
        """Each task's loader, in order: a model that holds it gets the same one back when it is resumed."""
        self._train_loaders.append(ref(train_loader))

    def belongings(self) -> dict[str, Any]:
        """What belongs to the dataset and not to the model, although the model may hold it."""
        things: dict[str, Any] = {}
        for task, reference in enumerate(self._train_loaders):
            for name in ("dataset", "transform", "generator"):
                things[f"train_loader[{task}].{name}"] = getattr(reference(), name, None)
            things[f"train_loader[{task}]"] = reference()
        return {name: thing for name, thing in things.items() if thing is not None}

    def packed_model(self) -> dict[str, Any]:
        """The model as a checkpoint holds it; warns about each part that can't be saved, once."""
        packed = pack(self.model, known=self.belongings())
        if new := [name for name in packed["uncaptured"] if name not in self._uncaptured]:
            logging.warning("an interrupted run will not resume exactly: %s can't be saved", ", ".join(new))
            self._uncaptured += new
        return packed

    def state_dict(self) -> dict[str, Any]:
        flags = method_flags(vars(self.args), self.args).items()
        return {
            "flags": {name: value for name, value in flags if value != self._first_flags.get(name)},
            "model": self.packed_model(),
            "schedule": self.schedule.state_dict(),
            "streams": self.dataset.streams.state_dict(),
            "global_rng": global_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any], steps_per_epoch: int, task: int) -> None:
        """The inverse of `state_dict`. Random generators come last: building the rest may draw from them."""
        if state["schedule"]["own"] is not None:
            self.schedule.begin(steps_per_epoch, task)
        vars(self.args).update(method_flags(state["flags"], self.args))
        unpack(self.model, state["model"], self.belongings())
        self.schedule.load_state_dict(state["schedule"])
        self.dataset.streams.load_state_dict(state["streams"])
        set_global_rng_state(state["global_rng"])
