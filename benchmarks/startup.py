"""How long the command line takes to answer where nothing is to be trained.

    python -m benchmarks.startup [--rounds 5] [--output FILE.json]

CPU time and wall-clock of whole processes, the best of some rounds in which all take turns. What the framework's own
flags suffice for (an unknown name, a value out of range, a finished run) must not wait for torch: at most 1 second of
CPU time. What needs the model's flags loads its module, and so torch: at most 2.5.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from utils.cli.registry import ROOT
from utils.run.environment import environment
from utils.run.write_results import write_json

ROUNDS = 5
FINISHED = "--model sgd --dataset seq-digits --seed 0 --n_epochs 1"
# What is asked, the exit code of the answer, and the seconds that it may take.
ANSWERS = {
    "an unknown model": ("--model err --buffer_size 100", 2, 1.0),
    "an unknown dataset": ("--model er --dataset seq-cifar1000 --buffer_size 100", 2, 1.0),
    "a value out of range": ("--model er --lr -1 --buffer_size 100", 2, 1.0),
    "a finished run": (FINISHED, 0, 1.0),
    "a missing flag of the model": ("--model er", 2, 2.5),
    "an unknown flag of the model": ("--model dgc_er --buffer_size 100 --dgc_alhpa 1", 2, 2.5),
}
TORCH = "import torch"  # the part of the answers that load it which is not ours


def answered_in(flags: str, expected: int, base_path: str) -> tuple[float, float]:
    return seconds([str(ROOT / "main.py"), *flags.split(), "--base_path", base_path], expected)


def seconds(words: list[str], expected: int = 0) -> tuple[float, float]:
    """CPU time and wall-clock of a Python process."""
    command = [sys.executable, *words]
    before, start = _children(), time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    wall = time.perf_counter() - start
    if done.returncode != expected:
        raise RuntimeError(f"{' '.join(words)}: exit code {done.returncode}, not {expected}: {done.stderr}")
    return _children() - before, wall


def _children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def measure(rounds: int) -> dict[str, Any]:
    best = {name: (math.inf, math.inf) for name in (*ANSWERS, TORCH)}
    with tempfile.TemporaryDirectory() as folder:
        answered_in(FINISHED, 0, folder)
        for _ in range(rounds):
            found = {name: answered_in(flags, code, folder) for name, (flags, code, _) in ANSWERS.items()}
            found[TORCH] = seconds(["-c", TORCH])
            best = {name: (min(best[name][0], cpu), min(best[name][1], wall)) for name, (cpu, wall) in found.items()}
    answers = {
        name: {"cpu_seconds": cpu, "wall_seconds": wall, "limit": ANSWERS[name][2] if name in ANSWERS else None}
        for name, (cpu, wall) in best.items()
    }
    return {"rounds": rounds, "answers": answers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--output", type=Path, help="also write the figures to this JSON file")
    args = parser.parse_args()
    result = measure(args.rounds)
    for name, found in result["answers"].items():
        times = f"{found['cpu_seconds']:.2f} s of CPU time, {found['wall_seconds']:.2f} s by the clock"
        verdict = "met" if found["limit"] is None or found["cpu_seconds"] <= found["limit"] else "MISSED"
        print(f"{name}: {times}" + (f"; goal ≤ {found['limit']}: {verdict}" if found["limit"] else ""))
    if args.output:
        write_json(args.output, result | {"load": os.getloadavg()[0], "environment": environment()})


if __name__ == "__main__":
    main()
