"""How a command ends that could not do what it was asked: one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from utils.errors import UserError, outside_reason
from utils.status import discard_stdout


@contextmanager
def one_line_failures() -> Iterator[None]:
    """Around all of a command. An error of the code keeps its traceback."""
    try:
        yield
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # `… --list | head`
        discard_stdout()
    except Exception as error:
        if (line := outside_reason(error)) is None:
            raise
        print(f"error: {line}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
