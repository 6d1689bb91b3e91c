"""Time and disk that runs will take: from finished runs of the same kind on this machine, else from a probe."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.cell_files import cells_root
from experiments.cells import Cell
from experiments.records import read_json, read_timing
from utils.files import atomic_write_text
from utils.run_config import relevant_config


@dataclass(frozen=True)
class Estimate:
    """Of one run. `source` says how it was measured; None if it could not be, for the reason in `error`."""

    seconds: float
    bytes: float
    source: str | None
    error: str = ""


def kind_of(args: Namespace) -> str:
    """What the time of a run depends on, as a short text: all that matters to its numbers, apart from the seed, the
    size of the buffer and all that is a fraction (learning rates, weights, α).
    """
    config = relevant_config(args)
    kept = {k: v for k, v in config.items() if k not in ("seed", "buffer_size") and not isinstance(v, float) and v}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


class Estimates:
    """What is known about the time of runs on this machine."""

    def __init__(self, cells: Iterable[Cell]):
        from utils.results import environment

        here = environment()
        self.machine = {name: here[name] for name in ("cpu", "gpu")}
        self._by_kind: dict[str, Estimate] = {}
        self._from_runs(cells)

    def _from_runs(self, cells: Iterable[Cell]) -> None:
        found: dict[str, list[tuple[float, int]]] = {}
        for cell in cells:
            timing, where = read_timing(cell.path), read_json(cell.path / "environment.json") or {}
            if timing is not None and all(where.get(name) == value for name, value in self.machine.items()):
                seconds = timing["train_seconds"] + timing["eval_seconds"]
                found.setdefault(kind_of(cell.args), []).append((seconds, _size(cell.path)))
        for kind, measured in found.items():
            seconds, sizes = zip(*measured, strict=True)
            self._by_kind[kind] = Estimate(fmean(seconds), fmean(sizes), "finished runs")

    def of(self, cell: Cell) -> Estimate | None:
        return self._by_kind.get(kind_of(cell.args))

    def probe(self, cells: Iterable[Cell], threads: int, device: str, tell: Callable[[str], None]) -> None:
        """Measure every kind of run that is not known yet; what was measured is kept for the next time."""
        for cell in cells:
            kind = kind_of(cell.args)
            if kind in self._by_kind:
                continue
            file = cells_root(cell.path) / "probes.json"
            known = read_json(file) or {}
            name = f"{self.machine['cpu']}, {self.machine['gpu']}, {device}, {threads} threads, {kind}"
            if name not in known:
                tell(f"measuring {cell.row} on {cell.args.dataset} …")
                known[name] = _measured([*cell.argv, f"--device={device}"], threads)
                if "error" not in known[name]:
                    atomic_write_text(file, json.dumps(known, indent=1, sort_keys=True) + "\n")
            result = known[name]
            self._by_kind[kind] = (
                Estimate(0, 0, None, result["error"])
                if "error" in result
                else Estimate(result["seconds"], result["bytes"], "a probe")
            )


def _measured(argv: list[str], threads: int) -> dict[str, Any]:
    from experiments.probe import probe

    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("forkserver").Process(target=probe, args=(argv, threads, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        return {"error": f"the probe ended with exit code {process.exitcode}"}
    finally:
        process.join()
        receiver.close()


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
