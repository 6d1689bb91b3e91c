"""Loss traces: what a few steps of every method compute, to 17 digits.

Each `.txt` file beside this one begins with a command line, without the flags in `COMMON`. The recorder writes the
rest: a row for each step (its loss, and two sums over the parameters after it) and one for the end of each task (with
the norm of the outputs for test images). To add a trace, write a command line into a new file and run `make traces`.

    make traces                    record all files again, after a change that is meant to move numbers
    make traces-against REV=main   compare the working tree with a revision, byte for byte

The committed files hold on every processor up to rounding, which `test_losses.py` allows for. Bytes agree on one
machine only, so the second command records both revisions on the spot with this recorder, in float64 and in float32,
the precision of real runs. It relies only on `main` and on the interface of models and datasets, so that it can record
revisions that are older than itself or keep their files elsewhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TASKS = 3
COMMON = (
    "--plugin tests/losses/smooth_net.py --dataset seq-digits --seed 0 --device cpu --non_verbose 1 --batch_size 8 "
    "--fitting_mode iters --n_iters 6"
)
HEADER = "task step loss norm projection"
TOLERANCE = 1e-6


def commands() -> dict[str, str]:
    """The command line of each trace, by the file's name."""
    files = sorted(HERE.glob("*.txt"))
    return {file.stem: file.read_text(encoding="utf-8").partition("\n")[0] for file in files}


# -- recording ---------------------------------------------------------------------------------------------------------


@contextmanager
def float64() -> Iterator[None]:
    """Networks are made in float64 and cast the float32 images that they get; `.float()` means float64, too."""

    def cast(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(a.double() if isinstance(a, Tensor) and a.dtype == torch.float32 else a for a in args)

    to_float32, default = Tensor.float, torch.get_default_dtype()
    hook = register_module_forward_pre_hook(cast)
    Tensor.float = Tensor.double  # type: ignore[method-assign]
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(default)
        Tensor.float = to_float32  # type: ignore[method-assign]
        hook.remove()


def record(command: str, hashed: bool = False) -> list[str]:
    """The rows of a command line's trace; `hashed` adds the bits of the state, which the numbers only sum up."""
    import main

    words = shlex.split(f"{COMMON} {command}")
    words = [str(ROOT / word) if word.startswith("tests/") else word for word in words]  # this checkout's
    with tempfile.TemporaryDirectory() as folder:
        args = main.parse_args([*words, "--base_path", folder])
        model, dataset, args = main.initialize(args)
    rows = []
    for task in range(min(TASKS, dataset.N_TASKS)):
        for step, loss in enumerate(train_task(model, dataset, args), 1):
            rows.append(_row(f"{task + 1} {step}", [loss], model, hashed))
        rows.append(_row(f"{task + 1} end", [outputs_norm(model, dataset)], model, hashed))
    return rows


def train_task(model: Any, dataset: Any, args: Any) -> Iterator[float]:
    """The losses of the next task's steps, as the training loop makes them."""
    loader, _ = dataset.get_data_loaders()
    model.net.train()
    if not args.task_free:
        model.meta_begin_task(dataset)
        model.meta_begin_epoch(0, dataset)
    names = getattr(loader.dataset, "extra_return_fields", ())
    for batch in islice(loader, args.n_iters):
        extra = dict(zip(names, batch[3:], strict=False)) | ({} if args.task_free else {"epoch": 0})
        result = model.meta_observe(*batch[:3], **extra)
        yield float(result["loss"] if isinstance(result, dict) else result)
    if not args.task_free:
        model.meta_end_epoch(0, dataset)
        model.meta_end_task(dataset)


@torch.no_grad()
def outputs_norm(model: Any, dataset: Any) -> float:
    """Norm of the predictions for the first test images of each task seen; a class that is ruled out has −∞."""
    model.net.eval()
    outputs = torch.cat([model(next(iter(loader))[0]) for loader in dataset.test_loaders])
    model.net.train()
    return float(outputs[outputs.isfinite()].norm())


def _row(place: str, values: list[float], model: Any, hashed: bool) -> str:
    state = [value for value in model.net.state_dict().values() if value.is_floating_point()]
    flat = torch.cat([value.detach().double().flatten() for value in state])
    values = [*values, float(flat.norm()), float(flat @ torch.arange(len(flat), dtype=torch.float64).cos())]
    if not all(map(math.isfinite, values)):
        raise ValueError(f"{place}: {values} are not finite, so the trace would guard nothing; choose other settings")
    bits = [hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16]] if hashed else []
    return " ".join([place, *(f"{value:.17g}" for value in values), *bits])


# -- comparing ---------------------------------------------------------------------------------------------------------


def first_difference(old: list[str], new: list[str], tolerance: float = 0.0) -> str | None:
    """The first rows that differ, by more than a relative tolerance, if any do."""
    for before, after in zip(old, new, strict=False):
        if not _agree(before.split(), after.split(), tolerance):
            return f"{before}  →  {after}"
    return None if len(old) == len(new) else f"{len(old)} rows → {len(new)} rows"


def _agree(old: list[str], new: list[str], tolerance: float) -> bool:
    if old == new or not tolerance:
        return old == new
    pairs = [(float(a), float(b)) for a, b in zip(old[2:], new[2:], strict=True)]
    return old[:2] == new[:2] and all(math.isclose(a, b, rel_tol=tolerance) for a, b in pairs)


def record_all(output: Path) -> None:
    """The traces of the checkout in the working directory, by precision and name; of what it refuses, the reason."""
    found: dict[str, Any] = {"float64": {}, "float32": {}}
    for name, command in commands().items():
        try:
            with float64():
                found["float64"][name] = record(command, hashed=True)
            found["float32"][name] = record(command, hashed=True)
        except Exception as error:
            if type(error).__name__ != "UsageError":
                raise
            found["float64"][name] = found["float32"][name] = str(error)
    output.write_text(json.dumps(found), encoding="utf-8")


def traces_of(checkout: Path, folder: Path) -> dict[str, Any]:
    """What this recorder finds in a checkout, in a process of its own."""
    output = folder / f"{checkout.name}.json"
    environment = os.environ | {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, __file__, "--output", output], cwd=checkout, env=environment, check=True)
    return json.loads(output.read_text(encoding="utf-8"))


def compare_with(revision: str) -> bool:
    """Print what differs between a revision and the working tree, and whether nothing does."""
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder, "revision")
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", checkout, revision], cwd=ROOT, check=True)
        try:
            old = traces_of(checkout, Path(folder))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", checkout], cwd=ROOT, check=True)
        new = traces_of(ROOT, Path(folder))
    counts = {"same": 0, "new": 0, "different": 0}
    for precision in old:
        for name, command in commands().items():
            verdict, detail = judge(old[precision][name], new[precision][name])
            counts[verdict] += 1
            if verdict != "same":
                print(f"{verdict}: {precision} {name} ({command})\n  {detail}")
    print(f"{revision} and the working tree: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return not counts["different"]


def judge(old: Any, new: Any) -> tuple[str, str | None]:
    if isinstance(new, str):
        return "different", f"it is refused now: {new}"
    if isinstance(old, str):
        return "new", f"the revision refuses it: {old}"
    difference = first_difference(old, new)
    return ("different" if difference else "same"), difference


def write_traces() -> None:
    for name, command in commands().items():
        with float64():
            rows = record(command)
        (HERE / f"{name}.txt").write_text("\n".join([command, HEADER, *rows, ""]), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Record all loss traces, or compare them with another revision's.")
    parser.add_argument("--against", metavar="REV", help="a git revision to compare the working tree with")
    parser.add_argument("--output", type=Path, help="record the checkout in the working directory into this file")
    options = parser.parse_args()
    if options.against:
        sys.exit(0 if compare_with(options.against) else 1)
    if options.output:
        record_all(options.output)
    else:
        write_traces()
