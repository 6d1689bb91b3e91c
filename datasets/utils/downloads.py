"""Files of the public datasets: find them, fetch them, and never take a damaged one for a good one."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import socket
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import BinaryIO
from urllib.parse import urlsplit

from tqdm import tqdm

from utils.errors import UserError
from utils.resume.files import atomic_write, file_digest, one_line_errors

CONNECT_SECONDS = 1.5  # to look up a server's name and reach it: a machine without a network should say so soon
STALL_SECONDS = 10  # without a byte from a server that was reached
CHUNK_BYTES = 1 << 16


@contextlib.contextmanager
def one_line_reads(path: Path) -> Iterator[None]:
    """Say in one line which file the operating system would not let us read, or numpy could not make sense of."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot read {error.filename or path}: {reason}; restore it or its permissions") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError) as error:
        reason = " ".join(str(error.args[0] if error.args else error).split()) or type(error).__name__
        raise UserError(f"{path} is damaged ({reason}); delete it, and make or fetch it again") from error


def find(base_path: str, folder: str, name: str) -> Path:
    """Where `name` lies: in `base_path/folder` or directly in `base_path`; the former if it is nowhere."""
    candidates = [Path(base_path) / folder / name, Path(base_path) / name]
    return next((path for path in candidates if path.exists()), candidates[0])


def obtain(base_path: str, folder: str, name: str, urls: Sequence[str], md5: str) -> Path:
    """The archive `name`, fetched from the first of `urls` that answers unless it is there already."""
    path = find(base_path, folder, name)
    if not path.exists():
        _fetch(urls, path, md5)
        return path
    if not has_md5(path, md5):
        raise UserError(f"{path} is damaged (its md5 is not {md5}); delete it to fetch it again from {urls[0]}")
    return path


def has_md5(path: Path, md5: str) -> bool:
    """Whether a file exists and has a checksum."""
    if not path.is_file():
        return False
    with one_line_reads(path):
        return file_digest(path, "md5") == md5


def _fetch(urls: Sequence[str], path: Path, md5: str) -> None:
    """Download to a temporary name and rename when the checksum is right: `path` is complete whenever it exists.

    What fails leaves no folder behind that was not there before.
    """

    def write(file: BinaryIO) -> None:
        reasons = []
        for url in urls:
            file.seek(0)
            file.truncate()
            digest = hashlib.md5(usedforsecurity=False)
            try:
                for chunk in _stream(url, path.name):
                    digest.update(chunk)
                    file.write(chunk)
            except _NetworkError as error:
                reasons.append(str(error))
                continue
            if digest.hexdigest() == md5:
                return
            reasons.append(f"the download's md5 is not {md5}")
        reason = "; ".join(dict.fromkeys(reasons))
        raise UserError(
            f"{path} is missing and could not be fetched from {' or '.join(urls)} ({reason}): put the file there "
            "by hand, or give the folder that holds it as --base_path"
        )

    new_folders = [folder for folder in path.parents if not folder.exists()]  # the innermost first
    try:
        atomic_write(path, write)
    except BaseException:
        for folder in new_folders:
            with contextlib.suppress(OSError):  # another process may have put something there
                folder.rmdir()
        raise


class _NetworkError(Exception):
    pass


def _stream(url: str, name: str) -> Iterator[bytes]:
    """The bytes behind a URL. Its errors get a type of their own: urllib's look like those of a full disk."""
    request = urllib.request.Request(url, headers={"User-Agent": "dgc"})
    try:
        _reach(url)
        with urllib.request.urlopen(request, timeout=STALL_SECONDS) as response:
            length = int(response.headers.get("Content-Length") or 0) or None
            with tqdm(total=length, desc=name, unit="B", unit_scale=True, disable=None) as bar:
                while chunk := response.read(CHUNK_BYTES):
                    bar.update(len(chunk))
                    yield chunk
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise _NetworkError(" ".join(str(reason).split())) from error


def _reach(url: str) -> None:
    """Raise an `OSError` soon if there is no way to the server. urllib may wait for minutes, because nothing limits
    the time in which a name is looked up; hence the thread, which is left to itself then."""
    parts = urlsplit(url)
    if not parts.hostname or parts.scheme in urllib.request.getproxies():
        return  # a file, or the proxy's affair
    address = (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
    errors: list[OSError] = [TimeoutError(f"no connection within {CONNECT_SECONDS} seconds")]

    def connect() -> None:
        try:
            socket.create_connection(address, CONNECT_SECONDS).close()
            errors.clear()
        except OSError as error:
            errors[0] = error

    thread = Thread(target=connect, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    if errors:
        raise errors[0]


def unpack(archive: Path, name: str) -> Path:
    """Unpack an archive beside itself; `name`, the file or folder in it, appears only when it is complete."""
    from torchvision.datasets.utils import extract_archive  # not above: see datasets.utils.torchvision_files

    target = archive.parent / name
    with one_line_errors(target), tempfile.TemporaryDirectory(dir=archive.parent, prefix=".unpacking-") as temporary:
        extract_archive(str(archive), temporary)
        try:
            os.replace(Path(temporary) / name, target)
        except OSError:
            if not target.exists():  # otherwise another process was faster, with the same content
                raise
    return target
