"""What the last bits of a run depend on beside its settings: the number of threads and the processor."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from utils.status import say

# By these the kernels of torch, MKL and oneDNN are kept to older instructions than the processor has.
LIMITS = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
COMPARED = ("cpu", "cpu_capability", "cpu_limits", "gpu")


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
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
