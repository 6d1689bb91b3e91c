"""What the README's commands take for someone who has just cloned the project: minutes by the clock, and disk.

    python -m benchmarks.first_hour [--output FILE.json]

Clones the last commit into a temporary folder and runs `make demo`, `make check` and `make test` there, in this order:
the first installs what users need, the second what developers need in addition. How long an installation takes depends
on the network and on pip's cache.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from utils.cli.registry import ROOT
from utils.run.environment import environment
from utils.run.write_results import write_json

TARGETS = ("installation", "demo", "check", "test")
INSTALLATION = ".venv/installed"  # what `make demo` begins with


def measure(targets: tuple[str, ...] = TARGETS) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "clone")
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        found: dict[str, Any] = {"clone_bytes": _bytes_of(clone), "seconds": {}}
        for target in targets:
            start = time.perf_counter()
            subprocess.run(["make", INSTALLATION if target == "installation" else target], cwd=clone, check=True)
            found["seconds"][target] = time.perf_counter() - start
        return found | {"venv_bytes": _bytes_of(clone / ".venv")}


def _bytes_of(folder: Path) -> int:
    """As they lie on the disk."""
    return 512 * sum(path.lstat().st_blocks for path in folder.rglob("*"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="also write the figures to this JSON file")
    args = parser.parse_args()
    result = measure() | {"cores": os.cpu_count(), "environment": environment()}
    for target, seconds in result["seconds"].items():
        print(f"{target}: {seconds / 60:.1f} minutes")
    print(f"{result['clone_bytes'] / 1e6:.0f} MB of project, {result['venv_bytes'] / 1e9:.1f} GB of .venv")
    if args.output:
        write_json(args.output, result)


if __name__ == "__main__":
    main()
