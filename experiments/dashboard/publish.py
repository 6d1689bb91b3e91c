"""Sending a dashboard to wandb; whatever hinders that is one line."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from experiments.dashboard.layout import Dashboard
from utils.errors import UsageError, UserError

OFFLINE = ("offline", "dryrun", "disabled")
SECONDS = 20  # to wait for an answer


def publish(dashboard: Dashboard, project: str, entity: str | None) -> list[str]:
    """The addresses of the workspace and of the report, which are new at every call."""
    mode = os.environ.get("WANDB_MODE", "")
    if mode in OFFLINE:
        raise UsageError(
            f"WANDB_MODE={mode}: a dashboard is laid out on wandb's server; unset it, and `wandb sync` the runs"
        )
    wandb, objects = _library()
    with _one_line():
        entity = entity or wandb.Api(timeout=SECONDS).default_entity
    places = [make(dashboard, project, entity) for make in (objects.workspace, objects.report)]
    with _one_line():
        for place in places:
            place.save()
        return [place.url for place in places]


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of the network, of the server or of the library
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(
            f"wandb did not take the dashboard ({reason}); log in by `wandb login` where there is a network, and "
            "name the project that has the runs"
        ) from None


def _library() -> tuple[Any, Any]:
    """wandb, and our module that needs its library for dashboards: an optional one."""
    try:
        return importlib.import_module("wandb"), importlib.import_module("experiments.dashboard.objects")
    except ModuleNotFoundError as error:
        raise UserError(f"{error}; `pip install wandb wandb-workspaces`, which only `dashboard` needs") from None
