"""Transforms written in a dataset's YAML."""

from __future__ import annotations

from typing import Any

from torchvision import transforms

from utils.errors import UsageError


def compose(file: str, key: str, entries: Any) -> transforms.Compose:
    """A list whose entries are `Name`, `Name: {argument: value}` or `Name: argument`, in torchvision's names."""
    if not isinstance(entries, list):
        raise UsageError(f"{file}: {key} must be a list of transforms, not {entries!r}")
    try:
        return transforms.Compose([_build(entry) for entry in entries])
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{file}: {key}: {error}") from None


def _build(entry: Any) -> Any:
    name, given = next(iter(entry.items())) if isinstance(entry, dict) and len(entry) == 1 else (entry, {})
    kind = getattr(transforms, str(name), None)
    if not isinstance(kind, type):
        raise ValueError(f"{name!r} is no transform of torchvision")
    if name == "RandomApply":
        inner = given["transform"]
        parts = [{part: arguments} for part, arguments in inner.items()] if isinstance(inner, dict) else inner
        return kind([_build(part) for part in parts], p=given.get("p", 0.5))
    return kind(**given) if isinstance(given, dict) else kind(given)
