"""A shell in which the environment was not activated."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers import ROOT


@pytest.mark.parametrize("command", ["main.py --model er --buffer_size 9", "main.py", "reproduce.py list", "embed.py"])
def test_a_python_without_the_packages_is_told_what_to_do(command: str) -> None:
    """-S leaves out where packages are installed."""
    done = subprocess.run(
        [sys.executable, "-S", *command.split()], cwd=ROOT, env={}, capture_output=True, text=True, check=False
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {sys.executable} has no torch, torchvision, numpy, yaml, tqdm: run `make demo`")
    assert line.endswith("then `source .venv/bin/activate` in every shell")
    assert (done.returncode, done.stdout) == (1, "")
