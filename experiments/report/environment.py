"""Under what conditions the runs of a report were made, in words: nothing about whose machine it was, or where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from experiments.results.collection import Results
from experiments.results.records import Record

VERSIONS = ("python", "torch", "torchvision", "numpy", "cuda")
COMMIT_LENGTH = 12
SHOWN = 6  # of different commits, say


def environment(results: Sequence[Results]) -> dict[str, str]:
    """What is known, by name; several values where the runs differ."""
    records = list({id(record): record for result in results for record in result.records.values()}.values())
    environments = [record.get("environment") or {} for record in records]
    found = {
        "Scale": _several(r.grid.conditions for r in results),
        "Runs": str(len(records)),
        "Finished": _dates(records),
        "Versions": _several(", ".join(f"{n} {e[n]}" for n in VERSIONS if e.get(n)) for e in environments),
        "Platform": _several(e.get("platform") for e in environments),
        "CPU": _several(_processor(e) for e in environments),
        "GPU": _several((e.get("gpu") or "none") if e else None for e in environments),
        "Commit": _several(_commit(e.get("git_commit")) for e in environments),
    }
    return {name: text for name, text in found.items() if text}


def _processor(environment: Record) -> str | None:
    threads = environment.get("threads")
    suffix = f", {threads} {'thread' if threads == 1 else 'threads'}" if threads else ""
    return f"{environment['cpu']}{suffix}" if environment.get("cpu") else None


def _commit(text: str | None) -> str | None:
    """Shortened; `-dirty` says that files were changed since."""
    if not text:
        return None
    commit, dash, dirty = text.partition("-")
    return commit[:COMMIT_LENGTH] + dash + dirty


def _dates(records: Iterable[Record]) -> str:
    days = sorted({str(timing["finished"])[:10] for r in records if (timing := r.get("timing")) and timing["finished"]})
    return " to ".join(dict.fromkeys([days[0], days[-1]])) if days else ""


def _several(values: Iterable[str | None]) -> str:
    """The distinct ones, most frequent first."""
    counts: dict[str, int] = {}
    for value in values:
        if value:
            counts[value] = counts.get(value, 0) + 1
    names = sorted(counts, key=lambda name: -counts[name])
    more = f"; and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return "; ".join(names[:SHOWN]) + more
