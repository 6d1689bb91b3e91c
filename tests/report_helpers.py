"""What the tests of reports share: results that were never run, and the tables of a page."""

from __future__ import annotations

import random
from html.parser import HTMLParser

from experiments.cells import Expansion
from experiments.grid import Grid, Row
from experiments.results.collection import Results
from experiments.results.records import Record

ENVIRONMENT = {"python": "3.11.7", "torch": "2.14.0", "cpu": "A processor", "gpu": None, "git_commit": 40 * "a"}


def made_up_record(seed: int, tasks: int, level: float, random_numbers: random.Random) -> Record:
    """A run as `read_record` gives it; `level` is about its accuracy."""
    matrix = [
        [round(min(100.0, max(0.0, level - 3 * (k - j) + random_numbers.gauss(0, 4))), 3) for j in range(k + 1)]
        for k in range(tasks)
    ]
    by_task = [sum(row) / len(row) for row in matrix]
    metrics = {"FAIA": sum(by_task) / tasks, "FAA": by_task[-1], "FF": 20 + random_numbers.gauss(0, 3), "BWT": -20.0}
    return {
        "model": "er",
        "dataset": "seq-cifar100",
        "seed": seed,
        "config_hash": f"{random_numbers.getrandbits(48):012x}",
        "class_il": metrics,
        "task_il": metrics,
        "n_tasks": tasks,
        "steps": 141 * tasks,
        "parameters": 182252,
        "average_accuracy": by_task,
        "accuracy": matrix,
        "buffer_size": 500,
        "stored_bytes": 500 * 3080,
        "whole_loss": {
            "at": [47 * k for k in range(3 * tasks)],
            "task": [k // 3 for k in range(3 * tasks)],
            "seen": [round(3 / (k + 1) + random_numbers.random(), 4) for k in range(3 * tasks)],
        },
        "timing": {
            "finished": "2024-05-01T00:00:00+00:00",
            "train_seconds": 9.0,
            "train_seconds_by_task": [1.0] * tasks,
        },
        "environment": ENVIRONMENT,
    }


def made_up_results(rows: int, buffers: int, seeds: int, tasks: int = 10) -> Results:
    """Two datasets with so many buffers each; every second row is compared with the one before it."""
    random_numbers = random.Random(0)
    names = [f"{'DGC-' if i % 2 else ''}M{i // 2}" for i in range(rows)]
    columns = {
        f"{dataset}, {100 * (b + 1)}": {"dataset": dataset, "buffer_size": 100 * (b + 1)}
        for dataset in ("S-CIFAR10", "S-CIFAR100")
        for b in range(buffers)
    }
    against = {name: names[i - 1] if i % 2 else None for i, name in enumerate(names)}
    grid = Grid(
        name="many",
        title="Many runs",
        flags={},
        columns=columns,
        rows={name: Row({}, {}, against[name]) for name in names},
        seeds=tuple(range(seeds)),
        metrics=["FAIA", "FAA", "FF"],
    )
    records = {
        (name, column, seed): made_up_record(seed, tasks, 60 + 2 * i, random_numbers)
        for i, name in enumerate(names)
        for column in columns
        for seed in range(seeds)
    }
    return Results(Expansion(grid, [], {}), records)


class Page(HTMLParser):
    """The text of each cell of each table and of the verdict's cards, by row; the elements with their attributes."""

    def __init__(self, text: str):
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.cards: list[list[list[str]]] = []
        self._filled = self.tables
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._within: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag in ("article", "section"):
            self._filled = self.cards if tag == "article" else self.tables
        elif tag == "table":
            self._filled.append([])
        elif tag == "tr":
            self._filled[-1].append([])
        elif tag in ("td", "th"):
            self._filled[-1][-1].append("")
            self._within = "cell"
        elif tag in ("script", "style"):
            self._within = tag

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "script", "style"):
            self._within = None

    def handle_data(self, data: str) -> None:
        if self._within not in ("script", "style"):
            self.text += data
        if self._within == "cell":
            self._filled[-1][-1][-1] += data
