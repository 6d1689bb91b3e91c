"""What `pip install .` calls (pyproject.toml): the project is used in its folder, and says so in one sentence."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

SENTENCE = (
    "This project is not installed by pip, because its packages `utils` and `datasets` would shadow those of others: "
    "run `make` in its folder instead, and use it there."
)


def get_requires_for_build_wheel(*_: Any, **__: Any) -> NoReturn:
    sys.exit(SENTENCE)


get_requires_for_build_editable = get_requires_for_build_sdist = get_requires_for_build_wheel
build_wheel = build_editable = build_sdist = get_requires_for_build_wheel
