"""`.npz` files that are the same bytes whenever they are made from the same arrays."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from utils.resume.files import atomic_write

EPOCH = (1980, 1, 1, 0, 0, 0)  # the first date that a zip archive can hold


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, Any], flag: str | None = None) -> None:
    """As `np.savez`, which writes the time of day into the file; complete or not at all, and nothing pickled.

    Not compressed: bytes of features hardly get smaller, and what a compressor writes depends on its version.
    """

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                with archive.open(zipfile.ZipInfo(f"{name}.npy", EPOCH), "w") as entry:
                    np.lib.format.write_array(entry, np.asarray(array, order="C"), allow_pickle=False)

    atomic_write(path, write, flag=flag)
