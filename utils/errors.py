"""Errors that are shown to the user as one line: what is wrong, why, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A run that cannot go on for a reason outside the code: a missing file, a full disk, a NaN."""

    exit_code = 1


class UsageError(UserError):
    """A command line or a config file that cannot be understood."""

    exit_code = 2


def nearest(name: str, choices: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest valid name, or the list of all when none is close."""
    choices = list(choices)
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; valid are {', '.join(sorted(choices))}" if choices else ""
