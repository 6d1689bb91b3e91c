"""Shared fixtures. Tests take the device as a parameter: the same suite runs on a GPU where there is one."""

from __future__ import annotations

import os
import signal
from collections import Counter

# The networks of the tests are so small that a second thread only costs time; what the caller asks for is honoured.
# Read when torch is loaded, here and in the processes that tests start: all then compute with as many threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Where there are several threads after all, those that wait must leave the core to the tests of other processes.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

from utils.cli import registry

# What runs in the background or under nohup ignores these signals, and so would all processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A run waits for the disk fifty times, longer than a short one computes, so that it outlives a power failure: no run of
# a test has to. What the tests start as processes of their own does wait.
os.fsync = os.fstat  # type: ignore[assignment]  # which refuses a closed file, too

# Tests that name no dataset train on the digits: images, of which a task takes a second.
registry.DEFAULT_DATASET = "seq-digits"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where processes share the files, those with the largest share of slow tests come first: none is left alone."""
    if hasattr(config, "workerinput"):
        tests = Counter(item.path for item in items)
        slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
        items.sort(key=lambda item: -slow[item.path] / tests[item.path])


DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)
