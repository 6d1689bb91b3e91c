"""Stop at the next step boundary when a scheduler or a user asks for it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

# Slurm and others send USR1 or USR2 some time before the end; TERM is the end; INT is Ctrl-C; HUP a closed terminal.
NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP")


def _numbers() -> list[int]:
    """The numbers of the signals that this platform has."""
    return [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


def _is_to_be_ignored(number: int) -> bool:
    """What `nohup` asks for: a run that outlives its terminal."""
    return number == getattr(signal, "SIGHUP", None) and signal.getsignal(number) == signal.SIG_IGN


def _say(text: str) -> None:
    # Not `print`: the signal may have interrupted a write to the same buffered stream.
    with contextlib.suppress(OSError):  # the terminal may be gone
        os.write(2, f"{text}\n".encode())


class StopSignals:
    """`with StopSignals() as stop:` the first signal sets `stop.received`, a further Ctrl-C ends the process.

    The loop looks at `received` between two steps, saves, and exits with `exit_code`. Only Ctrl-C is impatience:
    schedulers repeat themselves (Slurm sends TERM twice within milliseconds when it preempts a job). Outside the
    main thread, where Python allows no handlers, nothing is caught. In a process with other work, a notebook's, `end`
    is what ends the run instead.
    """

    def __init__(self, end: Callable[[int], object] = os._exit) -> None:
        self._end = end
        self.received: int | None = None
        self._originals: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """The shell's convention: 128 + the signal's number, 0 when there was none."""
        return 0 if self.received is None else 128 + self.received

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.received is None:
            self.received = number
            _say(f"{name} received: saving at the next step boundary; a further Ctrl-C stops at once")
        elif number == signal.SIGINT:
            _say(f"{name}: stopped at once, without saving")
            self._end(128 + number)

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in _numbers():
                if not _is_to_be_ignored(number):
                    self._originals[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, original in self._originals.items():
            # None: the handler was not installed from Python and cannot be reinstalled from it.
            signal.signal(number, signal.SIG_DFL if original is None else original)


class _Deferred(StopSignals):
    """Remembers signals instead of acting on them."""

    def __init__(self) -> None:
        super().__init__()
        self.caught: list[int] = []

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.caught.append(number)


@contextlib.contextmanager
def blocked_signals() -> Iterator[None]:
    """Stop signals wait until the end of the block. Processes that are started in it never get any; see below.

    The mask is inherited by those processes, but here it holds for this thread alone, and a library may have started
    others. So handlers, which Python runs in the main thread whichever thread was hit, do the rest.
    """
    deferred = _Deferred()
    try:
        with deferred:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _numbers())
            try:
                yield
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
    finally:
        for number in deferred.caught:
            signal.raise_signal(number)


def accept_signals() -> None:
    """For a process whose parent was started with `blocked_signals`."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _numbers())
