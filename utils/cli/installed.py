"""Imported first by every command: a Python without the packages is told so in one line, before an import fails."""

from __future__ import annotations

import sys
from importlib.util import find_spec

PACKAGES = ("torch", "torchvision", "numpy", "yaml", "tqdm")  # without which nothing starts

if missing := [name for name in PACKAGES if find_spec(name) is None]:
    sys.exit(
        f"error: {sys.executable} has no {', '.join(missing)}: run `make demo` once, which installs all into .venv, "
        "then `source .venv/bin/activate` in every shell"
    )
