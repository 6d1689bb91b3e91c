"""What DGC costs: the steps and the ends of tasks of `dgc_er` against those of `er`; of DER++ and X-DER the steps.

    python -m benchmarks.dgc_overhead [--rounds 100] [--levels 1 0] [--output FILE.json]

ResNet-18 of width 16 in the second task of seq-cifar100 (random images of its shape and number: no files), 32 + 32
images a step, 500 in the buffer, one torch thread, `-O 1` (channels_last) and `-O 0` (`--levels` chooses). In every
round each side makes one step on the same batch, in random order. Only `observe` is timed: loading and guarding would
dilute the ratio. Times are CPU times of the process, which for one thread is what a clock shows when nothing else is
running.

- A ratio is one of medians; its interval is the central 95 % of a bootstrap over the rounds.
- `sampled` is expected at 2.0: BatchNorm couples the images of a batch, so g(x̄;θ̃) needs the whole step's pass once
  more, and the paper's 1.93 is out of reach. `sampled plain`, whose pass is x̄ alone, is expected at 1.5.
- DER++ and X-DER pass x̄ by itself, so DGC adds one pass of r images. `passes` counts what it adds in thirds of a step
  of DER++, which has three such passes.
- The rounds fall into one stage. What the last step of a stage takes beyond others is timed in pairs of its own, and
  1/m of it is added.
- What `closed` adds to a step drowns in the noise of whole steps. So its parts are timed inside them (the hooks) or
  by themselves (watching the buffer), and added to er's step.
- "All in" adds the end of a task and the beginning of the next (beyond er's own), spread over the steps of 50 epochs.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.second_task import BATCH, FORMATS, STEPS, TASK_IMAGES, Side, interleaved_steps, nbytes, ratio, timed
from utils.run.environment import environment
from utils.run.write_results import write_json

WARM_UP, ROUNDS, STAGE_ROUNDS, WATCH_ROUNDS = 5, 100, 10, 300
ESTIMATORS = {
    "sampled": ["--dgc_estimator", "sampled"],
    "sampled plain": ["--dgc_estimator", "sampled", "--dgc_view", "plain"],
    "released": ["--dgc_estimator", "released"],
    "closed": ["--dgc_estimator", "closed"],
}
OTHER_BASES = ("derpp", "xder")
GOALS: dict[str, dict[str, float]] = {
    "sampled": {"step": 2.1},
    "sampled plain": {"step": 1.65},
    "released": {"step": 2.15},
    "closed": {"step": 1.03, "all_in": 1.05},
    "derpp": {"passes": 1.1},  # one, and what is not in a pass
    "xder": {"passes": 1.1},
}
FLAGS = ["--buffer_size", "500"]
WIDTH = 16
Figures = dict[str, Any]


class DgcSide(Side):
    """A model whose parts of a step can be timed, too."""

    def __init__(self, level: int, model: str, *flags: str):
        self.hooks: list[float] = []  # seconds in the optimizer's hooks, for each step
        fill = [] if model.endswith("xder") else ["--buffer_fill", "task_end"]  # X-DER fills so by itself
        super().__init__(level, WIDTH, model, *FLAGS, *fill, *flags)

    def step(self, batch: Any) -> float:
        self.hooks.append(0.0)
        return super().step(batch)

    def last_step_of_stage(self, batch: Any) -> float:
        self.model.dgc.stage_step = self.model.args.dgc_m - 1
        return self.step(batch)

    def time_hooks(self) -> None:
        """By an optimizer like the present one, made when they are replaced."""
        for name in ("_dgc_before_step", "_dgc_after_step"):
            setattr(self.model, name, self._timed_hook(getattr(self.model, name)))
        self.model.opt = self.model.get_optimizer()

    def _timed_hook(self, hook: Callable) -> Callable:
        def run(optimizer: Any, *_: Any) -> None:
            self.hooks[-1] += timed(hook, optimizer)

        return run

    def watching(self) -> float:
        """Seconds that noting which rows the base draws adds to a step."""
        model = self.model
        times: tuple[list[float], list[float]] = ([], [])

        def draw() -> None:
            model.buffer.get_data(BATCH, transform=model.transform, device=model.device)

        def watched() -> None:
            with model._dgc_recorder():
                draw()

        for _ in range(WATCH_ROUNDS):
            for function, found in zip((draw, watched), times, strict=True):
                found.append(timed(function))
        return statistics.median(times[1]) - statistics.median(times[0])

    def bytes(self) -> dict[str, int]:
        model, vectors = self.model, {"gamma": "gamma", "c_t": "calibrator", "running_sum": "record"}
        dgc = getattr(model, "dgc", None)
        kept = {name: nbytes(getattr(dgc, attribute, {})) for name, attribute in vectors.items()}
        snapshot = getattr(dgc, "snapshot", None)
        kept["snapshot"] = 0 if snapshot is None else nbytes(snapshot.state_dict())
        return {"buffer": model.buffer.nbytes(), "network": nbytes(model.net.state_dict())} | kept


def stage_seconds(side: DgcSide, batch: Any) -> float:
    """What the last step of a stage takes beyond another."""
    return statistics.median(side.last_step_of_stage(batch) - side.step(batch) for _ in range(STAGE_ROUNDS))


def estimator(name: str, side: DgcSide, times: dict[str, list[float]], batch: Any, er_end: float) -> Figures:
    """The figures of one estimator; `step` is the ratio to er's step, stages included."""
    er = statistics.median(times["er"])
    whole, whole_interval = ratio(times[name], times["er"])
    if name == "closed":
        hooks = side.hooks[-len(times["er"]) :]
        share, interval = ratio(hooks, times["er"])
        extra, base = side.watching(), 1.0
        parts = {"hooks_ms": 1e3 * statistics.median(hooks), "watching_ms": 1e3 * extra}
    else:
        extra, base = stage_seconds(side, batch) / side.model.args.dgc_m, 0.0
        share, interval = whole, whole_interval
        parts = {"stage_ms": 1e3 * extra * side.model.args.dgc_m, "m": side.model.args.dgc_m}
    end = side.end_and_begin()
    step = base + share + extra / er
    return {
        "step": step,
        "step_interval": [base + bound + extra / er for bound in interval],
        "all_in": step + (end - er_end) / (STEPS * er),
        "step_ms": 1e3 * statistics.median(times[name]),
        "whole_step": whole,
        "whole_step_interval": whole_interval,
        "end_of_task_seconds": end,
        "bytes": side.bytes(),
        **parts,
    }


def measure(level: int, rounds: int) -> Figures:
    sides = {"er": DgcSide(level, "er")}
    sides |= {name: DgcSide(level, "dgc_er", *flags) for name, flags in ESTIMATORS.items()}
    sides["closed"].time_hooks()
    batches = sides["er"].batches(rounds)
    times = interleaved_steps({name: side.step for name, side in sides.items()}, batches, WARM_UP, rounds)
    end = sides["er"].end_and_begin()
    er = {"step_ms": 1e3 * statistics.median(times["er"]), "end_of_task_seconds": end, "bytes": sides["er"].bytes()}
    return {"memory_format": FORMATS[level], "er": er} | {
        name: estimator(name, sides[name], times, batches[0], end) for name in ESTIMATORS
    }


def measure_bases(level: int, rounds: int) -> Figures:
    """What the paper's form adds to a step of other bases, in passes of r images."""
    names = [*OTHER_BASES, *(f"dgc_{base}" for base in OTHER_BASES)]
    sides = {name: DgcSide(level, name) for name in names}
    batches = sides["derpp"].batches(rounds)
    times = interleaved_steps({name: side.step for name, side in sides.items()}, batches, WARM_UP, rounds)
    one_pass, found = statistics.median(times["derpp"]) / 3, {}
    for base in OTHER_BASES:
        step, interval = ratio(times[f"dgc_{base}"], times[base])
        added = statistics.median(times[f"dgc_{base}"]) - statistics.median(times[base])
        found[base] = {"step": step, "step_interval": interval, "passes": added / one_pass}
    return found


def judged(name: str, found: Figures) -> str:
    goals = GOALS[name].items()
    return "goal " + ", ".join(f"{key} ≤ {goal}: {'met' if found[key] <= goal else 'MISSED'}" for key, goal in goals)


def show(figures: Figures) -> None:
    er = figures["er"]
    print(
        f"{figures['memory_format']}: er {er['step_ms']:.1f} ms/step, end of a task {er['end_of_task_seconds']:.2f} s"
    )
    for name in ESTIMATORS:
        found = figures[name]
        low, high = found["step_interval"]
        steps = f"step {found['step']:.4f} ({low:.4f}–{high:.4f}), all in {found['all_in']:.4f}"
        print(f"  {name:13} {steps}; {judged(name, found)}")
        parts = {key: found[key] for key in ("stage_ms", "hooks_ms", "watching_ms") if key in found}
        print(f"  {'':13} end of a task {found['end_of_task_seconds']:.1f} s, "
              + ", ".join(f"{key[:-3]} {value:.2f} ms" for key, value in parts.items()))  # fmt: skip
        print(f"  {'':13} bytes: " + ", ".join(f"{key} {size:,}" for key, size in found["bytes"].items() if size))


def show_bases(figures: Figures) -> None:
    for base, found in figures.items():
        low, high = found["step_interval"]
        ratios = f"step {found['step']:.3f} ({low:.3f}–{high:.3f}) × {base}"
        print(f"dgc_{base}: {ratios}, {found['passes']:.2f} passes more; {judged(base, found)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--levels", type=int, nargs="+", choices=(1, 0), default=(1, 0), help="of --code_optimization")
    parser.add_argument("--output", type=Path, help="also write the figures to this JSON file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    result: Figures = {"rounds": args.rounds, "steps_per_task": STEPS, "task_images": TASK_IMAGES, "goals": GOALS}
    for level in args.levels:
        result[f"O{level}"] = measure(level, args.rounds)
        show(result[f"O{level}"])
    result["other_bases"] = measure_bases(1, args.rounds)
    show_bases(result["other_bases"])
    result |= {"load": os.getloadavg()[0], "environment": environment()}
    if args.output:
        write_json(args.output, result)


if __name__ == "__main__":
    main()
