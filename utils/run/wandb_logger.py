"""Weights & Biases, on request; a run never depends on it.

wandb is on iff `args.nowand` is 0, and imported only then. If it is missing or fails in any way, one warning
is given, `args.nowand` becomes 1 (models look at it before they log anything) and training continues.

A resumed run continues the wandb run that it began. Steps that a server has cannot be taken back, and after a
crash the checkpoint is older than what was logged; so `wandb.json` in the run's directory remembers what was
logged, and nothing is logged twice. Offline, each session leaves its own directory; `wandb sync` takes them all.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import logging
import uuid
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from utils.loggers import Window
from utils.resume.files import atomic_write_text
from utils.run.heatmap import accuracy_heatmap
from utils.run.identity import model_name


def _harmless(method: Callable[..., None]) -> Callable[..., None]:
    """Skip the method when wandb is off; switch wandb off when it fails."""

    @functools.wraps(method)
    def call(self: WandbLogger, *args: Any, **kwargs: Any) -> None:
        if self.args.nowand:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # whatever it is, it is not worth a training run
            self._give_up(error)

    return call


class WandbLogger:
    """Losses per step, accuracies under Mammoth's keys, their matrix as an image, metrics as summary."""

    def __init__(self, args: Namespace, run_id: str, config: Mapping[str, Any], directory: Path):
        self.args = args
        self._memory = directory / "wandb.json"
        self._start(run_id, config)

    @_harmless
    def _start(self, run_id: str, config: Mapping[str, Any]) -> None:
        self._wandb = importlib.import_module("wandb")
        self._logged = self._read_logged(run_id)
        self._run = self._wandb.init(
            project=self.args.wandb_project,
            entity=self.args.wandb_entity,
            name=f"{self.args.wandb_name or model_name(self.args)}_{self._logged['id']}",
            id=self._logged["id"],
            resume="allow",
            config=dict(config),
            group=self.args.wandb_group or self.args.dataset,
            tags=list(self.args.wandb_tags),
            dir=str(self._memory.parent),
            settings=self._wandb.Settings(console="off"),  # a torn progress bar is of no use there
        )
        self._first_step = self._run.starting_step
        self._logged["step"] = max(self._logged["step"], self._first_step - 1)
        for name in ("RESULT_*", "FINAL_*", "AA"):
            self._run.define_metric(name, step_metric="Task")
        self.args.wandb_url = self._run.url

    def _read_logged(self, run_id: str) -> dict[str, Any]:
        """What earlier sessions logged. The random part of the id tells apart a team's runs of one config."""
        if self._memory.exists():
            return json.loads(self._memory.read_text())
        logged = {"id": f"{run_id}-{uuid.uuid4().hex[:8]}", "step": 0, "evaluations": []}
        atomic_write_text(self._memory, json.dumps(logged))
        return logged

    @_harmless
    def log_window(self, window: Window) -> None:
        """For `MetricsLog.on_window`: one wandb step per training step."""
        first = window.global_step - len(window.rows) + 1
        for step, row in enumerate(window.rows, start=first):
            if step > self._logged["step"]:
                self._run.log(row, step=step)
        self._logged["step"] = max(self._logged["step"], window.global_step)
        atomic_write_text(self._memory, json.dumps(self._logged))

    @_harmless
    def log_accuracy(
        self,
        task: int,
        class_il: Sequence[float],
        task_il: Sequence[float],
        global_step: int,
        epoch: int | None = None,
        prefix: str = "RESULT",
    ) -> None:
        """An evaluation after a task, or (`epoch`) within one. Tasks count from 0, as Mammoth's keys do."""
        if not self._is_new([prefix, task, epoch]):
            return
        suffix = "" if epoch is None else f"_epoch_{epoch}"
        values: dict[str, float] = {"Task": task} | _by_key(class_il, task_il, prefix, suffix)
        if epoch is None and prefix == "RESULT":
            values["AA"] = values["RESULT_class_mean_accs"]
        self._log_late(values, global_step)

    @_harmless
    def log_future(
        self, task: int, class_il: Sequence[float], task_il: Sequence[float], global_step: int, epoch: int | None = None
    ) -> None:
        """The tasks to come, the next one as 0."""
        if self._is_new(["future", task, epoch]):
            suffix = "_transf" if epoch is None else f"_transf_epoch_{epoch}"
            self._log_late({"Task": task} | _by_key(class_il, task_il, "RESULT", suffix), global_step)

    @_harmless
    def log_matrix(self, class_il: NDArray[np.float64], global_step: int) -> None:
        """The class-il accuracies so far, as an image."""
        if not self._is_new(["matrix", int(np.sum(~np.isnan(class_il))), None]):
            return
        image = accuracy_heatmap(class_il, "Class-IL accuracy (%)")
        self._log_late({"accuracy_matrix": self._wandb.Image(image)}, global_step)

    @_harmless
    def log_values(self, name: str, values: Mapping[str, float], global_step: int) -> None:
        """What was measured after a step whose losses are logged, as `name/…`."""
        if global_step > self._logged.get(name, -1):
            self._log_late({f"{name}/{key}": value for key, value in values.items()}, global_step)
            self._logged[name] = global_step
            atomic_write_text(self._memory, json.dumps(self._logged))

    def _is_new(self, evaluation: list[Any]) -> bool:
        """False for what an earlier session has logged; else it is remembered as logged."""
        if evaluation in self._logged["evaluations"]:
            return False
        self._logged["evaluations"].append(evaluation)
        atomic_write_text(self._memory, json.dumps(self._logged))
        return True

    def _log_late(self, values: dict[str, Any], global_step: int) -> None:
        """Log at the step of the last losses, or at the next if a session before this one has closed that."""
        self._run.log(values, step=max(global_step, self._first_step))

    @_harmless
    def log_summary(
        self, class_il: Mapping[str, float | None], task_il: Mapping[str, float | None], seconds: Mapping[int, float]
    ) -> None:
        """Final metrics where defined: `FAA`, `FAIA`, … for class-il, `FAA_task_il`, … for task-il; times of training.

        Names are those of the tables of `reproduce.py`, as far as wandb can sort and filter by them: no spaces.
        """
        values = {**class_il, **{f"{name}_task_il": value for name, value in task_il.items()}}
        values |= {"seconds": sum(seconds.values()), **{f"T{task + 1}": value for task, value in seconds.items()}}
        self._run.summary.update({name: value for name, value in values.items() if value is not None})

    @_harmless
    def finish(self, exit_code: int = 0) -> None:
        self._run.finish(exit_code=exit_code)

    def _give_up(self, error: Exception) -> None:
        self.args.nowand = 1
        if isinstance(error, ConnectionError):  # wandb's own process is dead: spare us its traceback at exit
            with contextlib.suppress(Exception):
                self._wandb.teardown()
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        logging.warning("wandb failed and is off for the rest of this session, training continues: %s", reason)


def _by_key(class_il: Sequence[float], task_il: Sequence[float], prefix: str, suffix: str) -> dict[str, float]:
    """Accuracies by Mammoth's keys, with their means."""
    values: dict[str, float] = {}
    for setting, accuracies in (("class", class_il), ("task", task_il)):
        values[f"{prefix}_{setting}_mean_accs{suffix}"] = float(np.mean(accuracies))
        values |= {f"{prefix}_{setting}_acc_{i}{suffix}": float(a) for i, a in enumerate(accuracies)}
    return values
