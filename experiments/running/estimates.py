"""Estimates of time and disk: from finished runs of the same kind on this machine, or else from a probe."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.cells import Cell
from experiments.results.records import read_json, read_summary
from experiments.running.cell_files import cells_root
from utils.errors import UserError
from utils.resume.files import atomic_write_text, results_flag
from utils.run.identity import relevant_config, stored_config
from utils.run.read_results import read_environment, read_timing


@dataclass(frozen=True)
class Estimate:
    """What one run needs. `source` says how that was measured; None if it could not be, with the reason in `error`."""

    seconds: float
    bytes: float
    source: str | None
    error: str = ""


def kind_of(args: Namespace) -> str:
    """A hash of what the time of a run depends on: all that affects its numbers, apart from the seed, the buffer size
    and fractions (learning rates, weights, α).
    """
    config = relevant_config(args)
    kept = {k: v for k, v in config.items() if k not in ("seed", "buffer_size") and not isinstance(v, float) and v}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


class Estimates:
    """What is known about the time of runs on this machine, on `device` if one is named."""

    def __init__(self, cells: Iterable[Cell], device: str | None = None):
        from utils.run.environment import environment

        here = environment()
        self.machine = {name: here[name] for name in ("cpu", "gpu")}
        self._prefix = f"{self.machine['cpu']}, {self.machine['gpu']}, "  # of the names of stored probes
        self._by_kind: dict[str, Estimate] = {}
        found: dict[str, list[tuple[float, int]]] = {}
        for cell in cells:
            if read_summary(cell.path) is None:
                continue
            timing, where = read_timing(cell.path), read_environment(cell.path)
            was_here = all(where.get(name) == value for name, value in self.machine.items())
            # Where there is no GPU, which device it was need not be read.
            if was_here and (device is None or not self.machine["gpu"] or _ran_on(cell.path, device)):
                seconds = timing["train_seconds"] + timing["eval_seconds"]
                found.setdefault(kind_of(cell.args), []).append((seconds, _size(cell.path)))
        for kind, measured in found.items():
            seconds, sizes = zip(*measured, strict=True)
            self._by_kind[kind] = Estimate(fmean(seconds), fmean(sizes), "finished runs")

    def of(self, cell: Cell) -> Estimate | None:
        return self._by_kind.get(kind_of(cell.args))

    def recall_probes(self, cells: Sequence[Cell]) -> None:
        """Use what `plan` has measured for kinds that are not known yet; with several numbers of threads, the mean."""
        stored = _stored_probes(cells[0]) if cells else {}
        for kind in {kind_of(cell.args) for cell in cells} - self._by_kind.keys():
            found = [p for name, p in stored.items() if name.startswith(self._prefix) and name.endswith(f", {kind}")]
            if found:
                seconds, sizes = (fmean(probe[name] for probe in found) for name in ("seconds", "bytes"))
                self._by_kind[kind] = Estimate(seconds, sizes, "a probe")

    def probe(self, cells: Iterable[Cell], threads: int, device: str, tell: Callable[[str], None]) -> None:
        """Measure every kind of run that is not known yet, and keep the measurements for the next time."""
        for cell in cells:
            kind = kind_of(cell.args)
            if kind in self._by_kind:
                continue
            known = _stored_probes(cell)
            name = f"{self._prefix}{device}, {threads} threads, {kind}"
            if name not in known:
                tell(f"measuring {cell.row} on {cell.args.dataset} …")
                known[name] = measured([*cell.argv, f"--device={device}"], threads)
                if "error" not in known[name]:
                    text = json.dumps(known, indent=1, sort_keys=True) + "\n"
                    atomic_write_text(_probes_file(cell), text, flag=results_flag(cell.args.results_path))
            result = known[name]
            self._by_kind[kind] = (
                Estimate(0, 0, None, result["error"])
                if "error" in result
                else Estimate(result["seconds"], result["bytes"], "a probe")
            )


def _ran_on(path: Path, device: str) -> bool:
    """Whether a run used a device of that kind, as far as is known."""
    try:
        used = str(stored_config(path, "args")["device"])
    except (UserError, KeyError):
        return True
    return used.partition(":")[0] == device.partition(":")[0]


def _probes_file(cell: Cell) -> Path:
    return cells_root(cell.path) / "probes.json"


def _stored_probes(cell: Cell) -> dict[str, Any]:
    """By name; none from a damaged file, because they can be measured again."""
    found = read_json(_probes_file(cell))
    probes = found if isinstance(found, dict) else {}
    return {name: p for name, p in probes.items() if isinstance(p, dict) and {"seconds", "bytes"} <= p.keys()}


def measured(argv: list[str], threads: int) -> dict[str, Any]:
    from experiments.running.probe import probe

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
