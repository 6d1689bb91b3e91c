"""What every method costs per step, as a multiple of `er`.

    python -m benchmarks.methods ["MODEL --FLAG VALUE" …] [--width 16] [--rounds 25] [--output FILE.json]

ResNet-18 in the second task of seq-cifar100, as benchmarks/second_task.py describes, `-O 1` (channels_last), with each
method's published settings for 500 images (`--model_config best`) and full buffers. A ratio is one of
medians; its interval is the central 95 % of a bootstrap over the rounds.

- `step` includes 1/m of the work that is done every m steps (measured with m = 1).
- `all_in` adds the end of the task and the beginning of the next (beyond er's own), spread over the steps of 50 epochs.
- `stored_bytes` is all that it keeps besides the network and its optimizer: its buffer, vectors, copies of the network.
- A method that mixes its buffer into the training set (iCaRL, Dynamic ER) steps on batches of that mixture, without
  replay, and makes 10 % more steps per epoch, which are not in the ratio.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.second_task import FORMATS, STEPS, TASK_IMAGES, Side, interleaved_steps, ratio
from models import get_model_entries
from utils.run.environment import environment
from utils.run.memory import stored_bytes
from utils.run.write_results import write_json

LEVEL, WARM_UP, FIRST_STEPS, PERIODIC_STEPS = 1, 3, 16, 3
BOUNDS = {"agem": 1.4, "dgc-er": 1.93, "gcr": 2.0, "ssvrg": 2.5, "moca": 3.5, "aop": 4.1, "xder": 7.2, "gss": 12.4}
# Beside every model's own settings. `dgc_er` takes a whole step's pass at θ̃ (see dgc_overhead.py), plain that of x̄.
VARIANTS = ["ssvrg --ssvrg_current 0", "dgc-er --dgc_view plain"]
PERIODS = ("dgc_m", "ssvrg_m")  # flags that say every how many steps something is done
WITHOUT_BUFFER = {"sgd", "joint", "aop", "ncm", "ridge"}
Figures = dict[str, Any]


def side(name: str, width: int, *more: str, first_steps: int = FIRST_STEPS) -> Side:
    model, *flags = name.split()
    size = [] if model in WITHOUT_BUFFER else ["--buffer_size", "500"]
    # Random images would not be classified right, and then would not become candidates of GCR in several epochs.
    epochs = ["--n_epochs", "1"] if model == "gcr" else []
    return Side(LEVEL, width, model, "--model_config", "best", *size, *epochs, *flags, *more, first_steps=first_steps)


def stepping(s: Side, rounds: int) -> Callable[[Any], float]:
    """A step on the batch that all get; of a method that has mixed its buffer into the training set, on its own."""
    if len(s.dataset.train_loader.dataset) == TASK_IMAGES:
        return s.step
    own = itertools.cycle(s.batches(rounds))
    return lambda _: s.step(next(own))


def periodic_seconds(name: str, width: int, ordinary: Side, step: float, batches: list[Any]) -> float:
    """What work that is done every m steps takes per step."""
    for period in PERIODS:
        m = getattr(ordinary.model.args, period, None)
        if m is not None:
            always = stepping(side(name, width, f"--{period}", "1", first_steps=1), PERIODIC_STEPS)
            times = [always(batch) for batch in batches[:PERIODIC_STEPS]]
            return max(0.0, statistics.median(times) - step) / m
    return 0.0


def measure(names: list[str], width: int, rounds: int) -> dict[str, Figures]:
    sides = {name: side(name, width) for name in names}
    batches = sides["er"].batches(rounds)
    times = interleaved_steps({name: stepping(s, rounds) for name, s in sides.items()}, batches, WARM_UP, rounds)
    er, er_end = statistics.median(times["er"]), sides["er"].end_and_begin()
    found = {}
    for name in names:
        step, interval = ratio(times[name], times["er"])
        periodic = periodic_seconds(name, width, sides[name], statistics.median(times[name]), batches) / er
        stored = stored_bytes(sides[name].model)  # before a task's end empties what it may
        end = er_end if name == "er" else sides[name].end_and_begin()
        found[name] = {
            "step": step + periodic,
            "interval": [bound + periodic for bound in interval],
            "periodic": periodic,
            "all_in": step + periodic + (end - er_end) / (STEPS * er),
            "end_of_task_seconds": end,
            "stored_bytes": stored,
            "bound": BOUNDS.get(name.split()[0]),
        }
        show(name, found[name])
    return {"er_step_ms": 1e3 * er, "methods": found}


def show(name: str, found: Figures) -> None:
    low, high = found["interval"]
    bound = f", the paper's {found['bound']}" if found["bound"] else ""
    print(
        f"{name:24} {found['step']:6.2f} ({low:.2f}–{high:.2f}) × er per step, {found['all_in']:.2f} all in, "
        f"end of task {found['end_of_task_seconds']:.1f} s, {found['stored_bytes']:,} bytes{bound}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", help="which methods, each with flags of its own; all by default")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--output", type=Path, help="also write the figures to this JSON file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = args.models or [*get_model_entries(), *VARIANTS]
    names = ["er", *(name for name in names if name not in ("er", "joint"))]
    result = measure(names, args.width, args.rounds)
    conditions = {"width": args.width, "rounds": args.rounds, "memory_format": FORMATS[LEVEL]}
    result |= conditions | {"load": os.getloadavg()[0], "environment": environment()}
    if args.output:
        write_json(args.output, result)


if __name__ == "__main__":
    main()
