"""Files of embeddings: labelled vectors in `.npz` or `.safetensors`, read without running any code that they hold.

Those that are written are the same bytes whenever they are made from the same arrays.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from utils.errors import UserError
from utils.resume.files import atomic_write, file_digest

ARRAYS = ("train_x", "train_y", "test_x", "test_y")
VECTOR_TYPES = ("float16", "float32", "int8")
SAFETENSORS_TYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I8": "i1", "U8": "u1", "I16": "<i2", "I32": "<i4"}
SAFETENSORS_TYPES |= {"I64": "<i8"}
LARGE = 1 << 30  # bytes of an array
EPOCH = (1980, 1, 1, 0, 0, 0)  # the first date that a zip archive can hold


@dataclass(frozen=True)
class Embeddings:
    """The content of a file: vectors [N, d] in the type that they are stored in, and labels 0 … C − 1."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    class_names: list[str]
    provenance: str
    sha256: str = ""  # of the file, which names a run's data wherever it lies

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    @property
    def width(self) -> int:
        return self.train_x.shape[1]


def read_embeddings(file: str) -> Embeddings:
    """Whatever is wrong with the file is an error of one line. Read once per process, unless the file changes."""
    path = Path(file)
    try:
        status = path.stat()
        return _read(path, status.st_mtime_ns, status.st_size)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"--embeddings {file}: {reason}; give an .npz or .safetensors file (see embed.py)") from None


@lru_cache(maxsize=2)
def _read(path: Path, changed: int, size: int) -> Embeddings:
    """`changed` and `size` only tell one state of the file from another."""
    return replace(_checked(path, read_arrays(path)), sha256=file_digest(path))


def write_embeddings(path: Path, arrays: Mapping[str, Any]) -> None:
    """An .npz file that is checked before it appears, complete or not at all."""
    _checked(path, dict(arrays))
    write_npz(path, arrays, flag="--output")


# -- formats -------------------------------------------------------------------------------------------------------


def read_arrays(path: Path, flag: str = "--embeddings") -> dict[str, Any]:
    """Arrays and texts by name, whatever they are for; `flag` is the option that names the file."""
    readers = {".npz": _npz, ".safetensors": _safetensors}
    if path.suffix not in readers:
        raise UserError(f"{flag} {path}: {path.suffix or 'no ending'} is no format known; use .npz or .safetensors")
    try:
        return readers[path.suffix](path)
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{flag} {path}: it can't be read ({reason}); write it without pickled objects") from None


def _npz(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _safetensors(path: Path) -> dict[str, Any]:
    """8 bytes with the header's length, the header in JSON, then the tensors; the metadata hold strings alone."""
    content = memoryview(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 + length:
        raise ValueError("the file ends within its header")
    header, body = json.loads(bytes(content[8 : 8 + length])), content[8 + length :]
    arrays: dict[str, Any] = dict(header.pop("__metadata__", {}))
    if "class_names" in arrays:
        arrays["class_names"] = np.array(json.loads(arrays["class_names"]))
    for name, entry in header.items():
        if entry["dtype"] not in SAFETENSORS_TYPES:
            raise ValueError(f"{name} is of type {entry['dtype']}")
        first, last = entry["data_offsets"]
        if not 0 <= first <= last <= len(body):
            raise ValueError(f"{name} lies beyond the end of the file")
        arrays[name] = np.frombuffer(body[first:last], SAFETENSORS_TYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, Any], flag: str | None = None) -> None:
    """As `np.savez`, which writes the time of day into the file; complete or not at all, and nothing pickled.

    Not compressed: bytes of features hardly get smaller, and what a compressor writes depends on its version.
    """

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                values, entry = np.asarray(array, order="C"), zipfile.ZipInfo(f"{name}.npy", EPOCH)
                # The form without a limit has other bytes, so only where the usual one (up to 2 GiB) might not do.
                with archive.open(entry, "w", force_zip64=values.nbytes > LARGE) as file_in_archive:
                    np.lib.format.write_array(file_in_archive, values, allow_pickle=False)

    atomic_write(path, write, flag=flag)


# -- what a file must hold -------------------------------------------------------------------------------------------


def _wrong(path: Path, reason: str) -> UserError:
    return UserError(f"--embeddings {path}: {reason}")


def _checked(path: Path, arrays: dict[str, Any]) -> Embeddings:
    if missing := [name for name in ARRAYS if name not in arrays]:
        raise _wrong(path, f"it lacks {', '.join(missing)}; it must hold {', '.join(ARRAYS)}")
    for part in ("train", "test"):
        _check_part(path, part, np.asarray(arrays[f"{part}_x"]), np.asarray(arrays[f"{part}_y"]))
    train, test = arrays["train_x"], arrays["test_x"]
    if train.shape[1] != test.shape[1] or train.dtype != test.dtype:
        kinds = f"{train.shape[1]} × {train.dtype} and {test.shape[1]} × {test.dtype}"
        raise _wrong(path, f"vectors of train_x and test_x differ ({kinds}); embed both by the same network")
    if train.dtype == np.int8:
        _check_scale(path, arrays.get("scale"), train.shape[1])
    n_classes = int(arrays["train_y"].max()) + 1
    for part in ("train", "test"):
        _check_classes(path, part, arrays[f"{part}_y"], n_classes)
    names = [str(name) for name in arrays.get("class_names", range(n_classes))]
    if len(names) != n_classes:
        raise _wrong(path, f"class_names has {len(names)} names for {n_classes} classes; give one for each, or none")
    labels = {f"{part}_y": arrays[f"{part}_y"].astype(np.int64) for part in ("train", "test")}
    return Embeddings(
        train_x=train, test_x=test, **labels, class_names=names, provenance=str(arrays.get("provenance", ""))
    )


def _check_part(path: Path, part: str, x: np.ndarray, y: np.ndarray) -> None:
    if x.dtype.name not in VECTOR_TYPES:
        raise _wrong(path, f"{part}_x is {x.dtype}; store it as {', '.join(VECTOR_TYPES[:-1])} or {VECTOR_TYPES[-1]}")
    if x.ndim != 2 or 0 in x.shape:
        raise _wrong(path, f"{part}_x has the shape {list(x.shape)}; it must be [N, d], a vector for each image")
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise _wrong(path, f"{part}_y is {y.dtype} {list(y.shape)}; it must be [N], whole numbers")
    if len(x) != len(y):
        raise _wrong(path, f"{part}_x has {len(x)} vectors and {part}_y {len(y)} labels; there must be one for each")
    if len(bad := np.flatnonzero(~np.isfinite(x).all(axis=1))):
        raise _wrong(path, f"{part}_x holds NaN or infinity in row {bad[0]} ({len(bad)} rows in all); embed again")


def _check_scale(path: Path, scale: Any, width: int) -> None:
    """A scale cancels when vectors are standardised; it must be there for whoever wants the embeddings back."""
    if scale is None:
        raise _wrong(path, "vectors in int8 need a scale, a number or one for each feature; add the array scale")
    values = np.asarray(scale, dtype=np.float64)
    if values.shape not in ((), (1,), (width,)) or not (np.isfinite(values) & (values > 0)).all():
        raise _wrong(path, f"scale {list(values.shape)} must be positive: a number or one for each of {width} features")


def _check_classes(path: Path, part: str, y: np.ndarray, n_classes: int) -> None:
    present = np.unique(y)
    if present[0] < 0 or present[-1] >= n_classes:
        raise _wrong(
            path, f"{part}_y has labels {present[0]}…{present[-1]}; the training labels make 0…{n_classes - 1}"
        )
    if len(present) < n_classes:
        hole = np.setdiff1d(np.arange(n_classes), present)[0]
        raise _wrong(
            path, f"{part}_y has no vector of class {hole}; number the classes 0…{n_classes - 1} without holes"
        )
