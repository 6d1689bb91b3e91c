"""What the code does on a GPU: one JSON, and a table to paste.

    make gpu                                     all of it, on the first GPU
    python -m benchmarks.gpu speed hours         only these parts
    python -m benchmarks.gpu --device cpu --width 4 --levels 0 1 speed     that the script itself works

- `tests`: the numeric tests, which run on the GPU, too, where there is one.
- `methods`: every method trains two tasks of the digits, on the GPU and on the CPU: does it run, and how far apart are
  the accuracies after it? Then its steps on images of CIFAR-100's shape: steps/s, peak memory, waits.
- `speed`: `er` and each estimator of DGC, full-width ResNet-18, 32 + 32 images a step, buffer of 500, `-O 0` to `-O 3`;
  and on top of -O 1 and -O 2 `torch.compile` and CUDA graphs, which are no options of `main.py`.
- `hours`: the GPU-hours of all tables with `--profile paper`, from a few steps of every kind of run.

The file is written after each method and setting, so that nothing is lost if a later one fails or Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import logging
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.dgc_overhead import ESTIMATORS
from benchmarks.gpu_hours import hours
from benchmarks.gpu_steps import ROOT, Effort, Figures, measured, use_random_images
from benchmarks.methods import WITHOUT_BUFFER
from experiments.report.tables import table
from experiments.tables import table_names
from main import initialize
from models import get_model_entries
from utils.args import ArgumentParser, number
from utils.cli.checks import require_device
from utils.cli.console import one_line_failures
from utils.cli.parse import parse_args
from utils.conf import get_device
from utils.errors import UsageError, UserError
from utils.resume.files import require_writable
from utils.run.environment import environment
from utils.run.write_results import write_json
from utils.status import say
from utils.training import train

PARTS = ("tests", "methods", "speed", "hours")
LEVELS = (0, 1, 2, 3)
# On top of a level: what of torch.compile, which is -O 3 on -O 2, and of CUDA graphs might be worth an option.
ON_TOP = {"-O 1, compiled": (1, "default"), "-O 1, CUDA graphs": (1, "reduce-overhead"),
          "-O 2, CUDA graphs": (2, "reduce-overhead")}  # fmt: skip
FEATURES = {"ncm", "ridge"}  # which need frozen features, not images
DIGITS = ["--n_epochs=1", "--batch_size=64", "--stop_after=2", "--non_verbose=1", "--nowand=1", "--seed=0"]
# Without published settings for the digits these must be told.
OF_METHODS = {name: ["--alpha=0.1", "--beta=0.5"] for name in ("derpp", "dgc-derpp", "gcr")}
OF_METHODS |= {"aop": ["--backbone=resnet18", "--num_filters=4"]}
# GCR chooses among images that were classified right, which random ones are not, unless there is one epoch.
OF_STEPS = {"gcr": ["--n_epochs=1"]}


def numeric_tests(*where: str) -> Figures:
    """The outcome of the numeric tests, which take the GPU as a device beside the CPU."""
    command = [sys.executable, "-m", "pytest", "-m", "numeric", "--numprocesses=4", "--dist=loadfile", *where]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.splitlines() or [""]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"exit_code": done.returncode, "outcome": re.sub(r" in .*| ?=+ ?", "", lines[-1]), "failed": failed[:50]}


def trained(model: str, device: str) -> float | str:
    """FAA after two tasks of the digits, or the error."""
    buffer = [] if model in WITHOUT_BUFFER else ["--buffer_size=50"]
    dataset = ["--dataset=seq-embeddings"] if model in FEATURES else ["--dataset=seq-digits"]
    with tempfile.TemporaryDirectory() as place:
        flags = [
            *dataset,
            *DIGITS,
            *buffer,
            *OF_METHODS.get(model, []),
            f"--device={device}",
            f"--results_path={place}",
        ]
        try:
            return train(*initialize(parse_args([f"--model={model}", *flags])))["class_il"]["FAA"]
        except Exception as error:  # whatever a method raises on this device
            return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def steps_of(model: str, device: str, width: int, level: int, *flags: str) -> list[str]:
    """The command line of a model in the second task of (random) CIFAR-100."""
    buffer = [] if model in WITHOUT_BUFFER else ["--buffer_size=500"]
    flags = (
        *buffer,
        f"--num_filters={width}",
        f"--code_optimization={level}",
        f"--device={device}",
        *flags,
        *OF_STEPS.get(model, []),
    )
    return [f"--model={model}", "--dataset=seq-cifar100", "--batch_size=32", *flags]


Save = Callable[[Figures], None]


def methods(names: Sequence[str], device: str, width: int, effort: Effort, save: Save = lambda found: None) -> Figures:
    found: Figures = {}
    for done, name in enumerate(names, 1):
        say(f"[{done}/{len(names)}] {name}")
        found[name] = {"faa_on_device": trained(name, device), "faa_on_cpu": trained(name, "cpu")}
        if name not in FEATURES:
            found[name] |= measured(steps_of(name, device, width, 0, "--model_config=best"), effort)
        save(found)
    return found


def speed(
    device: str,
    width: int,
    levels: Sequence[int],
    effort: Effort,
    on_top: dict = ON_TOP,
    save: Save = lambda found: None,
) -> Figures:
    """For each level er, each estimator and er once more, whose ratio to the first shows how much the clock drifts."""
    sides = {
        "er": ("er", []),
        **{name: ("dgc_er", flags) for name, flags in ESTIMATORS.items()},
        "er again": ("er", []),
    }
    settings: dict[str, tuple[int, str | None]] = {f"-O {level}": (level, None) for level in levels}
    settings |= {name: setting for name, setting in on_top.items() if setting[0] in levels}
    found: Figures = {}
    places = [(setting, side) for setting in settings for side in sides]
    for done, (setting, side) in enumerate(places, 1):
        say(f"[{done}/{len(places)}] {setting}: {side}")
        (level, mode), (model, flags) = settings[setting], sides[side]
        fill = ["--buffer_fill=task_end"]  # as DGC's, so that the sides differ in calibration alone
        command = steps_of(model, device, width, level, *fill, *flags)
        found.setdefault(setting, {})[side] = measured(command, effort, mode)
        save(found)
    return found


# -- to paste ----------------------------------------------------------------------------------------------------------


def _cells(figures: Figures, base: Figures | None = None) -> list[str]:
    """Steps/s, its ratio in time to another's, peak memory and waits; the error instead."""
    if "error" in figures:
        return [figures["error"], "", "", ""]
    rate, peak, waits = (figures[name] for name in ("steps_per_second", "peak_bytes", "waits_per_step"))
    ratio = f"{base['steps_per_second'] / rate:.2f}" if base and "error" not in base else ""
    return [f"{rate:.1f}", ratio, "" if peak is None else f"{peak / 2**20:,.0f}", "" if waits is None else f"{waits:g}"]


HEAD = ["steps/s", "time : er", "peak MiB", "waits per step"]


def shown(result: Figures) -> str:
    """What was measured, as Markdown."""
    where = result["environment"]
    parts = [f"{where['gpu'] or where['cpu']}, torch {where['torch']}, CUDA {where['cuda']}, width {result['width']}"]
    if "tests" in result:
        parts.append(f"Numeric tests: {result['tests']['outcome']}.")
    if "methods" in result:
        rows = [["method", "FAA there", "FAA on the CPU", *HEAD]]
        base = result["methods"].get("er")
        for name, found in result["methods"].items():
            accuracies = [
                a if isinstance(a, str) else f"{a:.1f}" for a in (found["faa_on_device"], found["faa_on_cpu"])
            ]
            measures = _cells(found, base) if len(found) > 2 else [""] * len(HEAD)
            rows.append([f"`{name}`", *accuracies, *measures])
        parts.append(table(rows))
    if "speed" in result:
        rows = [["setting", "side", *HEAD]]
        for setting, sides in result["speed"].items():
            rows += [[f"`{setting}`", side, *_cells(found, sides["er"])] for side, found in sides.items()]
        parts.append(table(rows))
    if "hours" in result:
        found = result["hours"]
        failed = sum(row["runs"] for row in found["failed"])
        text = (
            f"`--profile {found['profile']}`: {found['runs']:,} runs, about {found['hours']:,.0f} hours of this device"
        )
        parts.append(text + (f"; not in it: {failed} runs that failed." if failed else "."))
    return "\n\n".join(parts)


# -- the command -------------------------------------------------------------------------------------------------------


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = ArgumentParser(prog="benchmarks.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--device", default="cuda", help="cuda by default")
    parser.add_argument("--width", type=number(int, 1), default=64, help="filters of the ResNet-18; 64 is the paper's")
    parser.add_argument(
        "--levels", type=int, nargs="+", choices=LEVELS, default=list(LEVELS), help="of -O, for `speed`"
    )
    for name, default in Effort()._asdict().items():
        least = 0 if name == "warm_up" else 1
        text = f"{name.replace('_', ' ')} of a measurement"
        parser.add_argument(f"--{name}", type=number(int, least), default=default, help=text)
    parser.add_argument("--output", type=Path, help="write the figures to this JSON file")
    args = parser.parse_args(argv)
    if unknown := set(args.parts) - set(PARTS):
        raise UsageError(f"unknown part {unknown.pop()!r}; valid are {', '.join(PARTS)}")
    require_device(args.device)
    return args


def _device(name: str) -> torch.device:
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(
            "no CUDA device: torch sees no GPU here; to try the script itself: "
            "python -m benchmarks.gpu --device cpu --width 4"
        )
    return get_device(name)


def _require_output(file: Path) -> None:
    """Now, not after hours of measuring."""
    if file.is_dir():
        raise UsageError(f"--output {file} is a folder; give a file")
    require_writable(file.parent, "--output")


def run(args: argparse.Namespace) -> Figures:
    device = _device(args.device)
    if args.output:
        _require_output(args.output)
    use_random_images()
    effort = Effort(args.warm_up, args.rounds, args.steps)
    result: Figures = {"device": str(device), "width": args.width, "effort": effort._asdict()}
    result["environment"] = environment()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        result["gpu"] = {
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
        }
    names = [name for name in get_model_entries() if name != "joint"]
    making: dict[str, Callable[[], Any]] = {
        "tests": numeric_tests,
        "methods": lambda: methods(names, args.device, args.width, effort, lambda found: save("methods", found)),
        "speed": lambda: speed(args.device, args.width, args.levels, effort, save=lambda found: save("speed", found)),
        "hours": lambda: hours(table_names(), "paper", args.device, [f"--num_filters={args.width}"], say),
    }

    def save(part: str, found: Figures) -> None:
        result[part] = found
        if args.output:
            write_json(args.output, result)

    for part in [part for part in PARTS if not args.parts or part in args.parts]:
        save(part, making[part]())
    return result


def main(argv: list[str] | None = None) -> None:
    logging.basicConfig(level=logging.ERROR)
    with one_line_failures():
        print(shown(run(_arguments(argv))))


if __name__ == "__main__":
    main()
