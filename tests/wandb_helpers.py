"""What the tests of wandb share: the real one, offline, and its files read back."""

from __future__ import annotations

import contextlib
import json
import struct
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from utils.loggers import Window
from utils.run.wandb_logger import WandbLogger


def keep_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing leaves the machine, and nothing of the user's wandb is read or changed."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_DISABLE_GIT", "true")
    for name in ("CONFIG", "CACHE", "DATA", "ARTIFACT"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / name.lower()))
    pytest.importorskip("wandb")


def complete_records(path: Path) -> list[Any]:
    """wandb writes from a process of its own, which may still be at it when `finish` returns: wait for the end."""
    for _ in range(300):
        with contextlib.suppress(struct.error, DecodeError):  # a record that is half there
            found = list(records(path))
            if any(record.WhichOneof("record_type") == "exit" for record in found):
                return found
        time.sleep(0.1)
    raise AssertionError(f"{path} has no end")


def records(path: Path) -> Iterator[Any]:
    """The protobuf records of a .wandb file: a 7-byte header, then LevelDB's log format in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, pending = path.read_bytes(), 7, b""
    while position < len(data):
        left = 32768 - position % 32768
        if left < 7:  # too short for a header: padding
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        pending += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole record, or its last part
            yield Record.FromString(pending)
            pending = b""


def read_sessions(directory: Path) -> list[SimpleNamespace]:
    """Per session in order of time: run, history by step, summary."""
    sessions = []
    for path in sorted(directory.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        session = SimpleNamespace(history={}, summary={}, run=None, exit_code=None)
        for record in complete_records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                session.run = record.run
            elif kind == "history":
                row = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                session.history[row["_step"]] = row
            elif kind == "summary":
                for item in record.summary.update:
                    session.summary[item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
            elif kind == "exit":
                session.exit_code = record.exit.exit_code
        sessions.append(session)
    return sessions


def make_args(**changes: Any) -> Namespace:
    fields = dict(nowand=0, wandb_project="dgc", wandb_entity="lab", wandb_name=None, model="er")
    fields |= dict(dataset="seq-cifar10", wandb_group=None, wandb_tags=["tfcl", "grid"])
    return Namespace(**fields | changes)


def make_logger(directory: Path, args: Namespace) -> WandbLogger:
    return WandbLogger(args, "ab12", {"lr": 0.1, "buffer_size": 500}, directory)


def window(first: int, last: int) -> Window:
    return Window(0, 0, last, [{"loss": step / 10, "lr": 0.1} for step in range(first, last + 1)])


class Stub:
    """A wandb run; `broken` names the method that raises."""

    url, starting_step = "https://wandb.test/run", 0

    def __init__(self, broken: str | None, calls: list):
        self.broken, self.calls, self.summary = broken, calls, self

    def __getattr__(self, name: str) -> Any:
        def method(*args: Any, **kwargs: Any) -> None:
            self.calls.append((name, kwargs))
            if name == self.broken:
                raise RuntimeError("the server\nsaid no")

        return method


def install_stub(monkeypatch: pytest.MonkeyPatch, broken: str | None = None, starting_step: int = 0) -> list:
    calls: list = []
    run = Stub(broken, calls)
    run.starting_step = starting_step

    def init(**kwargs: Any) -> Stub:
        run.__getattr__("init")(**kwargs)
        return run

    module: Any = ModuleType("wandb")
    module.init, module.Image = init, lambda image: image
    module.Settings = lambda **settings: settings
    monkeypatch.setitem(sys.modules, "wandb", module)
    return calls
