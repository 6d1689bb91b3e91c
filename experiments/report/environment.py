"""The conditions that the runs of a report were made under, in words: nothing about whose machine it was, or where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from experiments.results.collection import Results

VERSIONS = ("python", "torch", "torchvision", "numpy", "cuda")
COMMIT_LENGTH = 12


def environment(results: Sequence[Results]) -> dict[str, str]:
    """What is known, by name; several values where the runs differ."""
    records = list({id(record): record for result in results for record in result.records.values()}.values())
    environments = [record.get("environment") or {} for record in records]
    days = sorted(str(timing["finished"])[:10] for r in records if (timing := r.get("timing")) and timing["finished"])
    found = {
        "Scale": _several(r.grid.conditions for r in results),
        "Runs": str(len(records)),
        "Finished": " to ".join(dict.fromkeys([*days[:1], *days[-1:]])),
        "Versions": _several(", ".join(f"{n} {e[n]}" for n in VERSIONS if e.get(n)) for e in environments),
        "Platform": _several(e.get("platform") for e in environments),
        "CPU": _several(e.get("cpu") and e["cpu"] + _threads(e.get("threads")) for e in environments),
        "GPU": _several((e.get("gpu") or "none") if e else None for e in environments),
        "Commit": _several(_commit(e.get("git_commit") or "") for e in environments),
    }
    return {name: text for name, text in found.items() if text}


def _threads(number: Any) -> str:
    return f", {number} thread{'s' * (number != 1)}" if number else ""


def _commit(text: str) -> str:
    """Shortened; `-dirty` says that files were changed since."""
    commit, dash, dirty = text.partition("-")
    return commit[:COMMIT_LENGTH] + dash + dirty


def _several(values: Iterable[str | None]) -> str:
    """The distinct ones, most frequent first."""
    return "; ".join(value for value, _ in Counter(filter(None, values)).most_common())
