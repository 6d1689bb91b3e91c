"""How a command begins and ends: with streams that can be written to, and in one line and an exit code if it failed."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from utils.errors import UserError, outside_reason
from utils.mammoth.helpers import setup_logging
from utils.resume.files import NO_SPACE
from utils.status import discard

NOT_SHOWN = {"not_shown": True}  # extra of a message for those who look for it, and not for the console


def open_standard_streams() -> None:
    """Before a command opens any file: one that got the number of a closed stream would receive what is printed."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:  # Python found it closed
            setattr(sys, name, os.fdopen(descriptor, "w", buffering=1, errors="backslashreplace"))


def show_messages() -> None:
    """Log to stderr at LOG_LEVEL, unless a handler exists."""
    others = list(logging.getLogger().handlers)
    setup_logging()
    for handler in logging.getLogger().handlers:
        if handler not in others:
            handler.addFilter(lambda record: not hasattr(record, "not_shown"))


@contextmanager
def one_line_failures(interrupted: str = "stopped") -> Iterator[None]:
    """Around all of a command. An error of the code keeps its traceback. `interrupted` is what Ctrl-C is answered."""
    try:
        try:
            with suppress(ValueError):  # of any thread but the main one, in which alone Python sets handlers
                if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                    signal.signal(signal.SIGINT, _interrupt)
            require_working_directory()
            yield
        finally:
            sys.stdout.flush()  # here, where its failure can still be told
    except UserError as error:
        _end(str(error), error.exit_code)
    except BrokenPipeError:  # `… --list | head`
        discard(sys.stdout)
    except Exception as error:
        line = outside_reason(error) or _output_lost(error)
        if line is None:
            raise
        _end(line, 1)
    except KeyboardInterrupt:
        _end(interrupted, 130, "")
    finally:
        try:
            sys.stderr.flush()
        except OSError:
            discard(sys.stderr)  # or the exit code would be that of Python's own attempt


def _interrupt(_: int, frame: FrameType | None) -> None:
    """A library may swallow what is raised while it is imported, and fail later with half of it loaded."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"stopped before it began\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def require_working_directory() -> None:
    """Libraries that torch loads end the process without one, and no relative path means anything."""
    try:
        os.getcwd()
    except OSError as error:
        raise UserError(
            f"the working directory is not there any more ({error.strerror}); `cd` to another one"
        ) from None


def _output_lost(error: Exception) -> str | None:
    """What to say if stdout could not be written; the rest of the output is dropped. Errors of files name the file."""
    if not isinstance(error, OSError) or error.errno not in NO_SPACE | {errno.EIO}:
        return None
    discard(sys.stdout)
    return f"stdout can't be written: {error.strerror}; choose another place for the output"


def _end(line: str, exit_code: int, kind: str = "error: ") -> None:
    with suppress(OSError):  # nobody can be told
        print(f"{kind}{line}", file=sys.stderr)
    sys.exit(exit_code)
