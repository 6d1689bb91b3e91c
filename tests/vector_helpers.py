"""Files of embeddings for tests: Gaussian classes, in any of the types that a file may have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from datasets.utils.embedding_file import VECTOR_TYPES

CLASSES, WIDTH, TRAIN, TEST = 20, 16, 40, 10


def arrays(dtype: str = "int8", classes: int = CLASSES, train: int = TRAIN, seed: int = 0) -> dict[str, Any]:
    """Vectors around a mean of each class; `train` and 10 test vectors a class."""
    assert dtype in VECTOR_TYPES
    random = np.random.RandomState(seed)
    means = 1 + random.randn(classes, WIDTH)
    made: dict[str, Any] = {"provenance": np.array("made by a test")}
    for part, count in (("train", train), ("test", TEST)):
        labels = np.repeat(np.arange(classes), count)
        made[f"{part}_x"], made[f"{part}_y"] = means[labels] + 0.8 * random.randn(len(labels), WIDTH), labels
    if dtype == "int8":
        made["scale"] = np.float32(np.abs(made["train_x"]).max() / 127)
        for part in ("train_x", "test_x"):
            made[part] = (made[part] / made["scale"]).round().clip(-127, 127)
    return made | {part: made[part].astype(dtype) for part in ("train_x", "test_x")}


def write(path: Path, **changes: Any) -> Path:
    """An .npz file; what is None is left out."""
    content = arrays() | changes
    np.savez(path, **{name: value for name, value in content.items() if value is not None})
    return path
