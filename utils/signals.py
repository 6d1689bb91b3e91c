"""Stop at the next step boundary when a scheduler or a user asks for it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

# Slurm and others send USR1 or USR2 some time before the end; TERM is the end; INT is Ctrl-C.
NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")


def _say(text: str) -> None:
    # Not `print`: the signal may have interrupted a write to the same buffered stream.
    with contextlib.suppress(OSError):  # the terminal may be gone
        os.write(2, f"{text}\n".encode())


class StopSignals:
    """`with StopSignals() as stop:` the first signal sets `stop.received`, a second one ends the process.

    The loop looks at `received` between two steps, saves, and exits with `exit_code`. Outside the main thread,
    where Python allows no handlers, nothing is caught.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._originals: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """The shell's convention: 128 + the signal's number, 0 when there was none."""
        return 0 if self.received is None else 128 + self.received

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.received is not None:
            _say(f"second signal ({name}): stopped at once, without saving")
            os._exit(128 + number)
        self.received = number
        _say(f"{name} received: saving at the next step boundary; a second signal stops at once")

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in NAMES if hasattr(signal, name)):
                self._originals[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, original in self._originals.items():
            # None: the handler was not installed from Python and cannot be reinstalled from it.
            signal.signal(number, signal.SIG_DFL if original is None else original)
