"""`make lock`: exact versions of all that requirements.txt leads to in an empty environment, without installing it.

python -m docs.lock > requirements-lock.txt
"""

from __future__ import annotations

import json
import subprocess
import sys

HEADER = """\
# Exact versions for those who want the same numbers: make REQUIREMENTS=requirements-lock.txt
# Made by `make lock` with Python {python} on {system} {machine}; another platform may need other packages."""


def lock(report: str) -> str:
    """The lines of the lock file, from pip's report of what it would install."""
    found = json.loads(report)
    environment, names = found["environment"], [item["metadata"] for item in found["install"]]
    lines = sorted((f"{name['name']}=={name['version']}" for name in names), key=str.lower)
    header = HEADER.format(
        python=environment["python_full_version"],
        system=environment["platform_system"],
        machine=environment["platform_machine"],
    )
    return "\n".join([header, *lines])


if __name__ == "__main__":
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "-r", "requirements.txt"]
    pip += ["--dry-run", "--ignore-installed", "--report", "-"]
    print(lock(subprocess.run(pip, check=True, stdout=subprocess.PIPE, text=True).stdout))
