"""Device, seeds and folders of the process, and what else Mammoth keeps here."""

from __future__ import annotations

import logging
import os
import random
from argparse import Namespace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from utils.cli.registry import ROOT
from utils.errors import UsageError

_device: torch.device | None = None
_folders: dict[str, str] = {}


@cache
def warn_once(*message: Any) -> None:
    """Log a warning, once for every text."""
    logging.warning(" ".join(map(str, message)))


def base_path(override: str | None = None) -> str:
    """The root of datasets and results, with a slash at its end; one that is given is remembered."""
    return _folder("data", override)


def get_checkpoint_path(override: str | None = None) -> str:
    return _folder("checkpoints", override)


def _folder(name: str, override: str | None) -> str:
    _folders[name] = override or _folders.get(name) or str(ROOT / name)
    return os.path.join(_folders[name], "")


def get_device(avail_devices: str | None = None, *, flag: str = "--device") -> torch.device:
    """The device of the process: chosen at the first call, or anew if `avail_devices` is given.

    `avail_devices`: a torch device name, or GPU ids separated by commas: the one with most free memory is taken.
    Without it CUDA is preferred to MPS and MPS to the CPU. `flag` is the option that an error message names.
    """
    return begin_on(avail_devices, flag) if _device is None or avail_devices is not None else _device


def begin_on(wanted: str | None, flag: str = "--device") -> torch.device:
    """The device of a run that begins, whatever that of an earlier run in this process was."""
    global _device
    _device = _choose_device(wanted, flag)
    return _device


def _choose_device(wanted: str | None, flag: str) -> torch.device:
    if wanted is None:
        kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(kind)
    ids = wanted.replace(" ", "").split(",")
    if all(part.isdecimal() for part in ids):
        return _freest_gpu([int(part) for part in ids], f"{flag} {wanted}")
    try:
        device = torch.device(wanted)
        if device.type not in ("cpu", "cuda", "mps"):
            raise RuntimeError("it is none of cpu, cuda and mps")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise UsageError(f"{flag} {wanted} can't be used ({reason}); leave it out to choose automatically") from None
    return device


def _freest_gpu(ids: list[int], given: str) -> torch.device:
    count = torch.cuda.device_count()
    if not all(i < count for i in ids):
        raise UsageError(f"{given}: this machine has {count} CUDA devices; leave it out to choose automatically")
    return torch.device("cuda", max(ids, key=lambda i: torch.cuda.mem_get_info(i)[0]))


def allow_waiting_without_cuda() -> None:
    """Some models (Mammoth's LUCIR) wait for the GPU without asking if there is one: if not, there is nothing to do."""
    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda device=None: None  # torch's own raises an error


def set_random_seed(seed: int) -> None:
    """Seed the global generators. Ours are `RandomStreams`; these serve initialisation and third-party models."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def worker_init_fn(worker_id: int, num_workers: int, seed: int) -> None:
    """Seed a loader's worker process, differently from all others."""
    set_random_seed(num_workers * worker_id + seed)


def create_seeded_dataloader(args: Namespace, dataset: Any, non_verbose: bool = False, **dl_kwargs: Any) -> DataLoader:
    """Mammoth's DataLoader: workers and order come from `--seed`, unless the caller has something else in mind."""
    options: dict[str, Any] = {"num_workers": getattr(args, "num_workers", 0), **dl_kwargs}
    if getattr(args, "seed", None) is not None:
        options.setdefault("generator", torch.Generator().manual_seed(args.seed))
        seed_worker = partial(worker_init_fn, num_workers=options["num_workers"], seed=args.seed)
        options.setdefault("worker_init_fn", seed_worker)
    return DataLoader(dataset, **options)


def use_deterministic_kernels(wanted: bool) -> None:
    """`--deterministic 1`: kernels without a reproducible form raise an error instead of being used.

    0 undoes what an earlier run in this process has asked for.
    """
    if wanted != torch.are_deterministic_algorithms_enabled():  # the setter loads torch's compiler, which takes seconds
        torch.use_deterministic_algorithms(wanted)
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
