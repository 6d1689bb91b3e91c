"""Write the accuracies of docs/results/benchmarks/mammoth_stream.json into docs/mammoth.md, between its two marks.

python -m docs.figures.mammoth_stream
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from docs.figures.marks import fill

DOCS = Path(__file__).resolve().parents[1]
PAGE, RESULTS = DOCS / "mammoth.md", DOCS / "results" / "benchmarks" / "mammoth_stream.json"
START, END = "<!-- accuracies: see docs/results/benchmarks/mammoth_stream.json -->", "<!-- end of accuracies -->"
HEAD = ["| method | file here | Mammoth, seeds from 0 on | here | gap of the means |", "|---|---|---|---|---|"]


def table() -> str:
    """In the order of the file's names: ours first."""
    methods = json.loads(RESULTS.read_text(encoding="utf-8"))["methods"]
    rows = []
    for name, found in sorted(methods.items(), key=lambda item: (not item[1]["file"].startswith("models"), item[0])):
        theirs, here = (", ".join(f"{value:.1f}" for value in found[side]) for side in ("mammoth", "here"))
        gap = statistics.mean(found["here"]) - statistics.mean(found["mammoth"])
        rows.append(f"| `{name}` | `{found['file']}` | {theirs} | {here} | {gap:+.1f} |")
    return "\n".join([*HEAD, *rows])


def main() -> None:
    fill(PAGE, START, END, table())


if __name__ == "__main__":
    main()
