"""What the tests of whole runs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from main import initialize
from utils.cli.parse import parse_args
from utils.resume.state import pack
from utils.training import train

ROOT = Path(__file__).resolve().parent.parent

# Files of a run that two equal runs have byte by byte.
RESULT_FILES = ("metrics.jsonl", "accuracy.csv", "per_class.csv", "confusion.csv", "summary.json")


def run(base_path: Path, *flags: str, model: str = "er", seed: int = 0) -> tuple[dict[str, Any], Any, Path]:
    """Train in this process on the digits: (summary, model, run directory)."""
    args = parse_args(["--model", model, "--seed", str(seed), "--base_path", str(base_path), *flags])
    built, dataset, args = initialize(args)
    summary = train(built, dataset, args)
    return summary, built, run_directory(base_path)


def uncapturable(model: torch.nn.Module) -> list[str]:
    """`name (class)` of everything that a resumed run would not get back."""
    return pack(model)["uncaptured"]


def run_directory(base_path: Path) -> Path:
    """The only run below a base path."""
    (found,) = base_path.glob("results/*/*/*")
    return found


def final_state(directory: Path) -> dict[str, Any]:
    """The last checkpoint of a run, without its wall-clock."""
    state = torch.load(directory / "checkpoint.pt", weights_only=True)
    del state["timing"]
    return state


def assert_same(a: Any, b: Any, path: str = "state") -> None:
    """Equality bit for bit of nested containers of tensors."""
    assert type(a) is type(b), path
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape, path
        assert torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)), path
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same(a[key], b[key], f"{path}[{key!r}]")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{path}[{i}]")
    else:
        assert a == b or (a != a and b != b), f"{path}: {a} != {b}"


def assert_same_run(a: Path, b: Path) -> None:
    for name in RESULT_FILES:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name
    assert_same(final_state(a), final_state(b))
