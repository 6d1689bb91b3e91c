"""Folders of small JPEG files, decoded once into one array beside them.

The decoding of 100 000 files takes most of a minute, reading the array a second. The cache file is a stamp and the
raw pixels; the stamp is a fingerprint of the files that the pixels were made from, and their CRC-32. A cache that is
cut off, damaged, or made from other files is made again.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image
from tqdm import tqdm

from utils.errors import UserError
from utils.resume.files import atomic_write

STAMP_BYTES = 32 + 4  # SHA-256 and CRC-32
FILES_AT_ONCE = 256  # that a thread decodes before it reports


def load_images(root: Path, files: Sequence[str], size: tuple[int, int], cache: Path) -> np.ndarray:
    """The images `root/file` as uint8 [N, H, W, 3], from the cache if it is good."""
    fingerprint = _fingerprint(root, files)
    images = _read(cache, (len(files), *size, 3), fingerprint)
    if images is None:
        images = _decode(root, files, size)
        _write(cache, images, fingerprint)
    return images


def _fingerprint(root: Path, files: Sequence[str]) -> bytes:
    """Names and sizes of the files, in order."""
    digest = hashlib.sha256()
    for file in files:
        path = f"{root}/{file}"
        try:
            digest.update(f"{file} {os.stat(path).st_size}\n".encode())
        except OSError as error:
            raise UserError(f"{path} is missing; delete the folder {root} and unpack the dataset again") from error
    return digest.digest()


def _decode(root: Path, files: Sequence[str], size: tuple[int, int]) -> np.ndarray:
    images = np.empty((len(files), *size, 3), np.uint8)

    def decode(start: int) -> int:
        chunk = files[start : start + FILES_AT_ONCE]
        for i, file in enumerate(chunk, start):
            images[i] = _decode_file(f"{root}/{file}", size)
        return len(chunk)

    logging.info("decoding %d images of %s (once)", len(files), root)
    pool = ThreadPoolExecutor(os.cpu_count())  # PIL decodes outside the interpreter lock
    try:
        with tqdm(total=len(files), desc=f"decoding {root.name}", unit=" images", disable=None) as bar:
            for count in pool.map(decode, range(0, len(files), FILES_AT_ONCE)):
                bar.update(count)
    finally:
        pool.shutdown(cancel_futures=True)  # after an error or Ctrl-C, don't decode the rest
    return images


def _decode_file(path: str, size: tuple[int, int]) -> np.ndarray:
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))  # some are grayscale
    except (OSError, SyntaxError, ValueError) as error:  # PIL's ways to say that a file is no good
        raise UserError(f"{path} is not a readable image ({error}); replace it from the original archive") from error
    if pixels.shape[:2] != size:
        raise UserError(f"{path} has {pixels.shape[:2]} pixels instead of {size}; replace it from the original archive")
    return pixels


def _stamp(images: np.ndarray, fingerprint: bytes) -> bytes:
    return fingerprint + zlib.crc32(images.data).to_bytes(4, "little")  # 0.3 s for 1.2 GB; md5 would take 2 s


def _read(cache: Path, shape: tuple[int, ...], fingerprint: bytes) -> np.ndarray | None:
    try:
        content = np.fromfile(cache, np.uint8)
    except FileNotFoundError:
        return None
    except OSError as error:
        logging.warning("%s is unreadable (%s) and is made again", cache, error)
        return None
    length = content.size - math.prod(shape)
    if length == STAMP_BYTES and content[:length].tobytes() == _stamp(content[length:], fingerprint):
        return content[length:].reshape(shape)
    logging.warning("%s is incomplete, damaged or made from other images, and is made again", cache)
    return None


def _write(cache: Path, images: np.ndarray, fingerprint: bytes) -> None:
    def write(file: BinaryIO) -> None:
        file.write(_stamp(images, fingerprint))
        file.write(images.data)

    try:
        atomic_write(cache, write)
    except UserError as error:  # a read-only or full disk costs time, not the run
        logging.warning("the decoded images are not kept: %s", error)
