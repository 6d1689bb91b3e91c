"""Datasets of the Hugging Face hub, for dataset files of Mammoth that fetch their images there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def ensure_required_files_from_hf(
    local_dir: str, required_relpaths: Sequence[str], repo_id: str, revision: str = "main"
) -> None:
    """Fetch a dataset unless all of some files are there already."""
    if not _missing(local_dir, required_relpaths):
        return
    download_dataset_snapshot(repo_id, local_dir, revision)
    if missing := _missing(local_dir, required_relpaths):
        raise FileNotFoundError(f"{repo_id} ({revision}) was fetched to {local_dir}, but has no {', '.join(missing)}")


def download_dataset_snapshot(repo_id: str, local_dir: str, revision: str = "main") -> None:
    """All files of a dataset."""
    download_dataset_snapshot_with_patterns(repo_id, local_dir, revision)


def download_dataset_snapshot_with_patterns(
    repo_id: str,
    local_dir: str,
    revision: str = "main",
    allow_patterns: str | Sequence[str] | None = None,
    ignore_patterns: str | Sequence[str] | None = None,
) -> None:
    """Those of its files whose names match."""
    patterns = {"allow_patterns": allow_patterns, "ignore_patterns": ignore_patterns}
    _hub("snapshot_download")(
        repo_id=repo_id, repo_type="dataset", local_dir=_folder(local_dir), revision=revision, **patterns
    )


def download_dataset_file(repo_id: str, local_dir: str, filename: str, revision: str = "main") -> str:
    """One file of it; its path."""
    return _hub("hf_hub_download")(
        repo_id=repo_id, repo_type="dataset", local_dir=_folder(local_dir), filename=filename, revision=revision
    )


def _missing(folder: str, files: Sequence[str]) -> list[str]:
    return [name for name in files if not Path(folder, name).exists()]


def _folder(name: str) -> str:
    Path(name).mkdir(parents=True, exist_ok=True)
    return name


def _hub(name: str) -> Callable[..., Any]:
    """A function of the library, which is not a dependency here: callers of this file have other sources as well."""
    try:
        import huggingface_hub
    except ImportError:
        raise ImportError("huggingface_hub is not installed; `pip install huggingface_hub` adds it") from None
    return getattr(huggingface_hub, name)
