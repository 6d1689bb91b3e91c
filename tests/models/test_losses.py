"""The loss traces of `tests/losses`: a change that moves a method's numbers shows here (see `losses/record.py`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ROOT
from losses import record

import models

COMMANDS = record.commands()


def committed(name: str) -> list[str]:
    return (record.HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines()[2:]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_numbers_of_a_method_are_the_committed_ones(name: str):
    with record.float64():
        found = record.record(COMMANDS[name])
    difference = record.first_difference(committed(name), found, record.TOLERANCE)
    assert difference is None, f"{difference}; if that is meant: `make traces`, and a line in CHANGELOG.md"


def test_every_method_and_every_estimator_has_a_trace():
    ours = {name.replace("-", "_") for name in models.get_model_entries()}
    traced = [command.split() for command in COMMANDS.values() if "--plugin" not in command]
    assert {words[words.index("--model") + 1] for words in traced} == ours
    for name in (name for name in ours if name.startswith("dgc_")):
        for estimator in ("sampled", "closed", "released"):
            assert any({name, estimator} <= set(words) for words in traced), (name, estimator)


def test_every_trace_shows_something_of_its_own():
    """A flag that leaves the numbers as they are would go unguarded."""
    seen: dict[tuple[str, ...], str] = {}
    for name in COMMANDS:
        rows = committed(name)
        assert len(rows) == (7 if name == "joint" else 21), name
        assert seen.setdefault(tuple(rows), name) == name


def test_recording_leaves_the_precision_as_it_was():
    with record.float64():
        assert torch.zeros(1, dtype=torch.int64).float().dtype == torch.get_default_dtype() == torch.float64
    assert torch.zeros(1, dtype=torch.int64).float().dtype == torch.get_default_dtype() == torch.float32


def test_a_difference_is_named_by_its_first_row():
    rows = ["1 1 2.5 4 1", "1 2 2.25 4 1", "1 end 3 4 1"]
    moved = ["1 1 2.5 4 1", "1 2 2.2500005 4 1", "1 end 4 4 1"]
    assert record.first_difference(rows, list(rows)) is None
    assert record.first_difference(rows, moved) == "1 2 2.25 4 1  →  1 2 2.2500005 4 1"
    assert record.first_difference(rows, moved, 1e-6) == "1 end 3 4 1  →  1 end 4 4 1"
    assert record.first_difference(rows, rows[:2]) == "3 rows → 2 rows"


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (["1 1 2 3 4"], ["1 1 2 3 4"], "same"),
        (["1 1 2 3 4"], ["1 1 2 3 5"], "different"),
        ("unknown flag --x", ["1 1 2 3 4"], "new"),
        (["1 1 2 3 4"], "unknown flag --x", "different"),
    ],
)
def test_a_command_that_a_revision_does_not_know_is_new(old: Any, new: Any, verdict: str):
    assert record.judge(old, new)[0] == verdict


@pytest.mark.slow
def test_two_revisions_are_compared_byte_for_byte(tmp_path: Path):
    """In a copy of the project whose working tree has a step that differs by rounding, and a new flag."""
    copy, losses, source = tmp_path / "copy", tmp_path / "copy/tests/losses", tmp_path / "copy/models/er.py"
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True)
    if files.returncode:
        pytest.skip("the project is no git checkout here")
    for name in files.stdout.split("\0"):
        if name.endswith((".py", ".yaml")) and (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", copy]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "old"]):
        subprocess.run([*git, *command], check=True)

    text = source.read_text(encoding="utf-8")
    place = '"general-continual"]\n'
    added = f"""{place}
    @staticmethod
    def get_parser(parser):
        ReplayModel.get_parser(parser).add_argument("--new_flag")
        return parser
"""
    for old, new in {"loss.backward()": "(loss * (1 + 1e-15)).backward()", place: added}.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    source.write_text(text, encoding="utf-8")
    for name, flags in {"sgd": "", "er": "--buffer_size 9", "added": "--buffer_size 9 --new_flag tasks"}.items():
        model = "sgd" if name == "sgd" else "er"
        (losses / f"{name}.txt").write_text(f"--model {model} --backbone smooth {flags}\n", encoding="utf-8")

    found = subprocess.run(
        [sys.executable, losses / "record.py", "--against", "HEAD"], cwd=copy, capture_output=True, text=True
    )
    assert found.returncode == 1, found.stderr
    assert "different: float64 er (--model er" in found.stdout and "different: float32" not in found.stdout
    assert "new: float64 added" in found.stdout and "unknown flag --new_flag" in found.stdout
    assert found.stdout.endswith("HEAD and the working tree: 3 same, 2 new, 1 different\n")
    worktrees = subprocess.run([*git, "worktree", "list"], capture_output=True, text=True).stdout
    assert len(worktrees.splitlines()) == 1
