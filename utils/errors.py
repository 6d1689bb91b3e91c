"""Errors that are shown to the user as one line: what is wrong, why, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A run that cannot continue for a reason outside the code: a missing file, a full disk, a NaN."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the line, without the way that the error took."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(UserError):
    """A command line or a config file that cannot be understood."""

    exit_code = 2


def outside_reason(error: Exception) -> str | None:
    """One line for what the machine refused, wherever that was; None for an error of the code."""
    text = " ".join(str(error).split())
    refused = any(words in text for words in ("can't allocate memory", "Storage size calculation overflowed"))
    if refused or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, on a GPU
        return f"out of memory ({text[:200]}); use a smaller --batch_size, --buffer_size or network"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; restore the file or its permissions"
    return None


# For a run that can't continue. Not every run has its seed in its command, and --resume excludes --overwrite.
START_AGAIN = "--overwrite 1 with the run's own command and seed, without --resume, starts again"
LIKENESS = 0.65  # less is no misspelling: `sdg` is near to `sgd`, but `--buffer_size` not to `--batch_size`


def nearest(name: str, choices: Iterable[str], otherwise: str | None = None) -> str:
    """`; did you mean 'x'?` for the closest valid name; when none is close, `otherwise` or the list of all.

    Dashes do not count: two flags are not alike because both begin with them.
    """
    choices = list(choices)
    by_letters = {_letters(choice): choice for choice in choices}
    close = difflib.get_close_matches(_letters(name), by_letters, n=1, cutoff=LIKENESS)
    if close:
        return f"; did you mean {by_letters[close[0]]!r}?"
    if otherwise is not None:
        return otherwise
    names = [repr(choice) if "," in choice else choice for choice in sorted(choices)]
    return f"; valid are {', '.join(names)}" if names else ""


def _letters(name: str) -> str:
    return name.lstrip("-").replace("-", "_")
