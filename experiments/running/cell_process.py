"""The process of one cell. The server that forks it imports this module first, so that no cell waits for torch."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import shlex
import signal
import sys
import threading
from pathlib import Path

import torch

import main
import utils.run.final_report
import utils.training  # noqa: F401 (what every run loads)
from utils.resume.signals import accept_signals


def run_cell(argv: list[str], log: Path, threads: int) -> None:
    """`main.py` with its output in a log; exits with its exit code."""
    accept_signals()
    os.setsid()  # Ctrl-C is for the parent, which stops its cells: a further one would end them without saving
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
    print(f"$ python main.py {shlex.join(argv)}", flush=True)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    main.main(argv)


def _stop_with_parent() -> None:
    """A parent that was killed cannot stop its cells, and nobody renews their leases: save and stop.

    One that stops without waiting, on a further Ctrl-C, has asked before: then this is the cell's further Ctrl-C.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGINT)
