"""The processes that cells run in: forked by a server that has torch loaded, so that no cell waits for it."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from experiments.cells import Cell
from utils.cli.registry import ROOT
from utils.resume.signals import accept_signals, blocked_signals

# What every run loads, with what torch's first optimizer and the first dataset load; datasets whose imports take longer
# than a small run.
PRELOADED = ["torch._dynamo", "torchvision.transforms", "utils.training", "utils.run.final_report"]
PRELOADED += ["experiments.running.processes", "experiments.running.probe"]
SLOW_IMPORTS = {"seq-digits": "sklearn.datasets"}


def threads_per_process(processes: int) -> int:
    """Share the cores, unless OMP_NUM_THREADS says how many threads a process gets."""
    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        return int(os.environ["OMP_NUM_THREADS"])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = os.environ.get("SLURM_CPUS_ON_NODE", "")  # not every cluster binds a job to what it may use
    return max(1, min(cores, int(granted) if granted.isdigit() else cores) // processes)


def available_devices() -> list[str]:
    """Every GPU, else what a single run would choose."""
    import torch

    from utils.conf import get_device

    return [f"cuda:{i}" for i in range(torch.cuda.device_count())] or [str(get_device())]


def start_fork_server(threads: int, cells: Iterable[Cell]) -> None:
    """A process that has torch loaded, and forks one process per cell in milliseconds."""
    slow = {SLOW_IMPORTS[cell.args.dataset] for cell in cells if cell.args.dataset in SLOW_IMPORTS}
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOADED, *sorted(slow)])
    # Libraries read the number of threads when they are loaded. And the server does not get our search path before it
    # loads (Python 3.11): started in another folder it would not find our modules, and say nothing.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # A scheduler signals every process of a job, and these two must live on for the cells to be able to save. The
    # start of the first ends with signals accepted, hence the second block.
    for server in (multiprocessing.resource_tracker, multiprocessing.forkserver):
        with _environment(OMP_NUM_THREADS=str(threads), PYTHONPATH=path), blocked_signals():
            server.ensure_running()


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def run_cell(argv: list[str], log: Path, threads: int) -> None:
    """`main.py` with its output in a log; exits with its exit code."""
    import torch

    import main

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
