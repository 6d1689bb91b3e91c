"""What the last bits or the speed of a run depend on beside its settings: versions, hardware and threads."""

from __future__ import annotations

import logging
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from utils.run.read_results import json_object
from utils.status import say

# By these the kernels of torch, MKL and oneDNN are kept to older instructions than the processor has.
LIMITS = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
COMPARED = ("cpu", "cpu_capability", "cpu_limits", "gpu")


def environment() -> dict[str, Any]:
    """`environment.json`: what may change the last bits or the speed of a run; nothing about whose it is."""
    import torchvision  # slow to load, and `git_commit` is asked before the flags are checked to the end

    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "numpy": np.__version__,
        "cpu": _cpu_model(),
        **capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "git_commit": git_commit(),
    }


def _cpu_model() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or None


@cache
def git_commit() -> str | None:
    """The commit of this source tree, "-dirty" if files were changed since; None outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def capability() -> dict[str, str | None]:
    """The instructions that torch uses, and what the environment says about those of the libraries below it."""
    limits = " ".join(f"{name}={os.environ[name]}" for name in LIMITS if name in os.environ)
    return {"cpu_capability": torch.backends.cpu.get_cpu_capability(), "cpu_limits": limits or None}


@contextmanager
def as_begun(directory: Path, here: dict[str, Any]) -> Iterator[None]:
    """Resume with the number of threads that a run was begun with, and say if the hardware is `here` another."""
    begun = _recorded(directory / "environment.json")
    changes = [
        f"{name}: {begun[name]} → {here[name]}" for name in COMPARED if name in begun and begun[name] != here[name]
    ]
    if changes:
        logging.warning(
            "the run was begun on other hardware (%s): its last bits may differ from those of a run without a break",
            ", ".join(changes),
        )
    before, threads = torch.get_num_threads(), begun.get("threads")
    if not isinstance(threads, int) or threads < 1 or threads == before:
        yield
        return
    say(f"Using {threads} {'thread' if threads == 1 else 'threads'}, as when the run was begun, not {before}")
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)  # the process may have other work


def _recorded(path: Path) -> dict[str, Any]:
    """Nothing if the file is missing or damaged: then nothing is known about the hardware."""
    try:
        return json_object(path)
    except (OSError, ValueError):
        return {}
