"""Checkpoints that a killed run continues from: atomic, verified, and read without running code.

They hold tensors and plain containers only and are read with `weights_only=True` only, so that a file from elsewhere
can be wrong, but never runs code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import pickle
import re
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from utils.errors import START_AGAIN, UserError
from utils.resume.files import atomic_write, atomic_write_text, file_digest

NEWEST, PREVIOUS, MANIFEST = "checkpoint.pt", "checkpoint.previous.pt", "checkpoint.json"
# What a checkpoint holds beside tensors and containers.
SCALARS = (type(None), bool, int, float, complex, str, bytes, bytearray, torch.dtype, torch.Size, torch.device)
# Directories whose newest file was written or verified by this process.
_sound: set[Path] = set()


def save(directory: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Make `state` the newest checkpoint and keep the one before it.

    A kill between any two system calls leaves a complete file whose digest is known: the manifest names the new file
    and both old ones before any of them is moved, and the new file is on the disk before the manifest is.
    """
    directory = Path(directory)
    plain = compact(state, "state", {})
    digest = hashlib.sha256()

    def make_room() -> None:
        newest, previous = directory / NEWEST, directory / PREVIOUS
        known = _digests(directory)
        if known is None:
            known = [file_digest(path) for path in (newest, previous) if _read(path, None)[0] is None]
        # Two would do, if no process ever died, or was refused a rename, between here and the end.
        manifest = {"sha256": [digest.hexdigest(), *known][:8]}
        atomic_write_text(directory / MANIFEST, json.dumps(manifest) + "\n")
        # A damaged newest file is replaced; moving it would overwrite the good previous one.
        if newest.exists() and (directory in _sound or _read(newest, known)[0] is None):
            os.replace(newest, previous)

    atomic_write(directory / NEWEST, lambda file: write_archive(plain, file, digest), before_replace=make_room)
    _sound.add(directory)


def load(directory: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The newest sound checkpoint, or None where there is none at all."""
    directory = Path(directory)
    _sound.discard(directory)
    digests = _digests(directory)
    reasons: list[str] = []
    for name in (NEWEST, PREVIOUS):
        reason, state = _read(directory / name, digests)
        if reason is None:
            if name == NEWEST:
                _sound.add(directory)
            else:
                logging.warning("%s; continuing from %s", reasons[0], name)
            return state
        reasons.append(f"{directory / name} {reason}")
    if not any((directory / name).exists() for name in (NEWEST, PREVIOUS)):
        return None
    raise UserError(f"cannot resume: {', and '.join(reasons)}; {START_AGAIN}")


@contextlib.contextmanager
def misfits_explained(source: str) -> Iterator[None]:
    """Around putting the content of a file in place: say in one line that it is not what such a file holds."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UserError(f"cannot continue from {source}: its content does not fit ({reason}); {START_AGAIN}") from error


def _read(path: Path, digests: list[str] | None) -> tuple[str | None, Any]:
    """Why a checkpoint cannot be used, or None and its content."""
    try:
        reason = _damage(path, digests)
        return reason, torch.load(path, map_location="cpu", weights_only=True) if reason is None else None
    except Exception as error:  # zipfile and torch raise whatever the bytes lead them to
        return reason_of(error), None


def _damage(path: Path, digests: list[str] | None) -> str | None:
    """What is wrong with the bytes of a file; without a manifest, the archive's own CRC-32 is the witness."""
    if not path.exists():
        return "is missing"
    if digests is None:
        return archive_damage(path)
    return None if file_digest(path) in digests else "is damaged (its SHA-256 is not the one recorded)"


def archive_damage(path: Path) -> str | None:
    """torch itself does not look at the CRC-32 of what it reads."""
    with zipfile.ZipFile(path) as archive:
        return "is damaged (its CRC-32 does not match)" if archive.testzip() else None


def _digests(directory: Path) -> list[str] | None:
    """The digests of the manifest, or None if it is lost."""
    try:
        digests = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))["sha256"]
        return digests if isinstance(digests, list) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


class _Tee:
    """Passes what torch writes on to the file and the digest, and remembers why the file refused it.

    torch turns an `OSError` into a `RuntimeError` about positions, which does not say that the disk is full.
    """

    def __init__(self, file: BinaryIO, digest: Any):
        self.file, self.digest, self.flush = file, digest, file.flush
        self.error: OSError | None = None

    def write(self, block: bytes) -> int:
        try:
            self.digest.update(block)
            return self.file.write(block)
        except OSError as error:
            self.error = error
            raise


def write_archive(content: Any, file: BinaryIO, digest: Any) -> None:
    tee = _Tee(file, digest)
    try:
        torch.save(content, tee)  # type: ignore[arg-type]
    except Exception:
        if tee.error is not None:
            raise tee.error from None
        raise


def compact(value: Any, path: str, done: dict[int, Any]) -> Any:
    """A copy of nested containers without the parts of storages that no tensor in them shows.

    torch writes the whole storage of a view: one row of a data set would bring all of it along. Anything that
    `weights_only` would refuse at the next start is refused here, while the run can still be saved.
    """
    if type(value) in SCALARS:
        return value
    if isinstance(value, Tensor):
        if id(value) not in done:
            view = value.layout == torch.strided and value.nbytes < value.untyped_storage().nbytes()
            done[id(value)] = value.detach().clone() if view else value
        return done[id(value)]
    if type(value) in (dict, OrderedDict, Counter):
        items = ((compact(key, path, done), compact(part, f"{path}[{key!r}]", done)) for key, part in value.items())
        return type(value)(dict(items))
    if type(value) in (list, tuple, set):
        return type(value)(compact(part, f"{path}[{index}]", done) for index, part in enumerate(value))
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(f"{path} is a {kind}; a checkpoint holds tensors and plain containers only")


def reason_of(error: Exception) -> str:
    """Why a file could not be loaded, without torch's advice to load it unsafely."""
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    code = re.search(r"GLOBAL ([\w.]+)", str(error))
    if isinstance(error, pickle.UnpicklingError) and code:
        return f"is refused, since it asks for {code[1]}: only tensors and plain containers are loaded"
    return f"is no checkpoint or is damaged ({type(error).__name__})"
