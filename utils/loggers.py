"""What a run writes down while it trains: steps and events in `metrics.jsonl`, a console line per evaluation.

`metrics.jsonl` is a function of the run alone: it has no wall-clock in it, its lines end at step numbers that
do not depend on when checkpoints are taken, and a resumed run cuts off what its checkpoint does not know of.
So an interrupted run and an uninterrupted one leave the same bytes. (Wall-clock goes to `timing.json`.)
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from utils.errors import START_AGAIN, UserError
from utils.resume.files import fsync_directory, is_file_of, one_line_errors

WINDOW = 50  # training steps per line: one device-to-host transfer each
COUNTERS = ("task", "epoch", "step", "global_step")


class Window(NamedTuple):
    """Consecutive training steps just written; `rows[-1]` is the run's step number `global_step` (from 1)."""

    task: int
    epoch: int
    global_step: int
    rows: list[dict[str, float]]


class MetricsLog:
    """Append-only JSON lines; every line has `event`, `task`, `epoch`, `step`, all counted from 1.

    `step` is the number of steps made in the task. Events:
    - `train`: one list per term (`loss`, …) for the last `len(loss)` steps up to `step`; null where a step
      did not have the term; `lr` is a single number while it is constant; `epoch` is the last step's;
    - whatever the loop passes to `event`: evaluations, ends of tasks, the summary.
    """

    def __init__(self, path: str | Path, on_window: Callable[[Window], None] | None = None):
        self.path = Path(path)
        self.on_window = on_window
        self.task = self.epoch = -1  # counted from 0, as the loop does
        self.step = self.global_step = 0
        self._pending: list[Mapping[str, torch.Tensor | float]] = []
        self._latest: torch.Tensor | float = math.nan
        self._size, self._digest = 0, hashlib.sha256()  # of what was written
        # Opened by the first write, which also empties what a run without a checkpoint has left there.
        self._file: Any = None

    def begin_task(self, task: int) -> None:
        """Also called when a resumed run re-enters the task it was in: that changes nothing."""
        if task != self.task:
            self.flush()
            self.task, self.epoch, self.step = task, -1, 0

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def add_step(self, values: Mapping[str, torch.Tensor | float]) -> None:
        """Remember the terms of one step (`loss`, `lr`, …); the device is not waited for.

        A tensor must be the step's own: one that a later step overwrites in place has to be cloned first.
        """
        row = {name: v.detach() if isinstance(v, torch.Tensor) else v for name, v in values.items()}
        self._pending.append(row)
        self._latest = row.get("loss", math.nan)
        self.step += 1
        self.global_step += 1
        if self.step % WINDOW == 0:
            self.flush()

    def flush(self) -> None:
        """Write the pending steps. For places that every run passes (ends of tasks), never on a signal."""
        if not self._pending:
            return
        rows = to_host(self._pending)
        self._append("train", _columns(rows))
        self._pending = []
        if self.on_window is not None:
            self.on_window(Window(self.task, self.epoch, self.global_step, rows))

    def event(self, name: str, **fields: Any) -> None:
        """Write one line at full precision, after the steps that came before it; NaN (undefined) as null."""
        self.flush()
        self._append(name, plain(fields))

    def latest_loss(self) -> float:
        """The loss of the last step. Waits for the device: for a progress bar that is about to be redrawn."""
        return float(self._latest)

    def state_dict(self) -> dict[str, Any]:
        """The pending steps, and size and digest of a file that is safely on the disk when this returns."""
        self._pending = [*to_host(self._pending)]
        if self._file is not None:
            with one_line_errors(self.path):
                os.fsync(self._file.fileno())
        written = {"size": self._size, "sha256": self._digest.hexdigest()}
        state: dict[str, Any] = {**written, "pending": list(self._pending)}
        return state | {name: getattr(self, name) for name in COUNTERS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.close()
        for name in COUNTERS:
            setattr(self, name, state[name])
        self._pending = list(state["pending"])
        self._latest = self._pending[-1].get("loss", math.nan) if self._pending else math.nan
        self._size = state["size"]
        with one_line_errors(self.path):
            self._digest = self._digest_on_disk()
            if self._digest.hexdigest() != state["sha256"]:
                raise UserError(
                    f"{self.path} was changed since the checkpoint was taken (its SHA-256 is another one); put it back "
                    f"as it was, else {START_AGAIN}"
                )
            self._open()

    def close(self) -> None:
        """Does not flush: steps that no regular flush has written belong to the checkpoint."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _digest_on_disk(self) -> Any:
        """The digest of the part of the file that the checkpoint knows of; the rest will be cut off."""
        found = self.path.stat().st_size if self.path.exists() else 0
        if found < self._size:
            raise UserError(
                f"{self.path} has {found} bytes, but had {self._size} when the checkpoint was taken; "
                f"put the whole file back, else {START_AGAIN}"
            )
        digest = hashlib.sha256()
        if self._size:
            with open(self.path, "rb") as file:
                digest.update(file.read(self._size))
        return digest

    def _open(self) -> None:
        """Unbuffered, so that a line written is safe from a crash; cut to the size that the log knows."""
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (lives as long as the log)
        self._file.truncate(self._size)
        fsync_directory(self.path.parent)

    def _append(self, name: str, fields: Mapping[str, Any]) -> None:
        head = {"event": name, "task": self.task + 1, "epoch": self.epoch + 1, "step": self.step}
        line = json.dumps(head | dict(fields), separators=(",", ":"), allow_nan=False) + "\n"
        with one_line_errors(self.path):
            self._write(line.encode())

    def _write(self, line: bytes) -> None:
        if self._file is None:
            self._open()
        elif not is_file_of(self._file.fileno(), self.path):
            raise UserError(f"{self.path} was removed or replaced during the run; {START_AGAIN}")
        written = 0
        try:
            while written < len(line):  # a nearly full disk takes only a part
                written += self._file.write(line[written:])
        except OSError:
            self._file.truncate(self._size)  # no half lines for those who read the file
            raise
        self._size += written
        self._digest.update(line)


def to_host(rows: Sequence[Mapping[str, torch.Tensor | float]]) -> list[dict[str, float]]:
    """The rows as plain floats, with a single transfer for all tensors of a device."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for row in rows:
        for value in row.values():
            if isinstance(value, torch.Tensor):
                by_device.setdefault(value.device, []).append(value if value.ndim == 0 else value.reshape(()))
    host = {device: iter(torch.stack(tensors).tolist()) for device, tensors in by_device.items()}
    return [
        {name: float(next(host[v.device]) if isinstance(v, torch.Tensor) else v) for name, v in row.items()}
        for row in rows
    ]


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """One list per term in the order of first appearance; float32 losses carry 6 significant digits."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, Any] = {name: [_rounded(row.get(name)) for row in rows] for name in names}
    if "lr" in columns and len(set(columns["lr"])) == 1:
        columns["lr"] = columns["lr"][0]
    return columns


def _rounded(value: float | None) -> float | str | None:
    """JSON has no NaN or infinity; strings, which `float()` reads, keep them apart from a missing term."""
    if value is None:
        return None
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)


def plain(value: Any) -> Any:
    """What JSON can hold: numpy becomes Python, and non-finite numbers (undefined accuracies) become None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def mean_accuracy_line(class_il: Sequence[float], task_il: Sequence[float]) -> str:
    """The console line of an evaluation: means over the tasks evaluated, in percent."""
    means = f"[Class-IL]: {np.mean(class_il):.2f} % [Task-IL]: {np.mean(task_il):.2f} %"
    return f"Accuracy for {len(class_il)} task(s): {means}"
