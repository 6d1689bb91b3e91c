"""The names of run directories: a change that renames them loses everyone's runs, so it raises `RESULTS_VERSION`.

`hashes.txt` has a run's directory in each line, and after it the command that makes it. After the version was raised,
`PYTHONPATH=.:tests python tests/utils/run/test_hashes.py` writes the new names into it.
"""

from __future__ import annotations

import shlex

import pytest
from helpers import ROOT

FILE = ROOT / "tests" / "hashes.txt"
LINES = [line.split(maxsplit=1) for line in FILE.read_text(encoding="utf-8").splitlines()]
REMEDY = "a new flag needs the default None (docs/extending.md); if numbers have moved, raise RESULTS_VERSION"


def directory_of(command: str) -> str:
    """Below the folder of all results."""
    from main import parse_args
    from utils.run.directory import RunDirectory

    words = [str(ROOT / word) if word.startswith("tests/") else word for word in shlex.split(command)]
    path = RunDirectory(parse_args([*words, "--base_path", "/nowhere"])).path
    return path.relative_to("/nowhere/results").as_posix()


@pytest.mark.parametrize(("directory", "command"), LINES, ids=[command for _, command in LINES])
def test_a_command_keeps_its_directory(directory: str, command: str) -> None:
    assert directory_of(command) == directory, REMEDY


def test_the_commands_are_many_and_all_different() -> None:
    assert len({directory for directory, _ in LINES}) == len(LINES) >= 40


if __name__ == "__main__":
    FILE.write_text("".join(f"{directory_of(command)}  {command}\n" for _, command in LINES), encoding="utf-8")
