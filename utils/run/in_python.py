"""How a run behaves inside a Python process that has other work: a script, a notebook."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from utils.cli.console import require_working_directory
from utils.errors import UserError, outside_reason
from utils.resume.signals import StopSignals


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or the notebook's stop button, after the checkpoint."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


def patient_signals() -> StopSignals:
    """The first Ctrl-C saves and stops; a further one raises `KeyboardInterrupt`, and leaves the process alive."""
    return StopSignals(end=_interrupt)


def _interrupt(exit_code: int) -> None:
    raise Interrupted("stopped at once; the same call continues from the last checkpoint")


@contextmanager
def plain_errors() -> Iterator[None]:
    """What a command ends with in one line and an exit code is one exception here, without those that led to it."""
    try:
        require_working_directory()
        yield
    except UserError as error:
        raise type(error)(str(error)) from None
    except SystemExit as stopped:  # by a signal, after a checkpoint
        if stopped.code == 128 + signal.SIGINT:
            raise Interrupted("stopped after a checkpoint; the same call continues from there") from None
        raise
    except KeyboardInterrupt as error:
        raise (
            error if isinstance(error, Interrupted) else Interrupted("stopped outside training; what was saved is kept")
        ) from None
    except Exception as error:
        line = outside_reason(error)
        if line is None:
            raise
        raise UserError(line) from None
