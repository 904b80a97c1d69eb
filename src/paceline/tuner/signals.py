"""Stops that are meant: Ctrl-C, and the signal by which systems end a process.

The first one is noted, and the search stops where it can be gone on with; the second one stops it
at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = ("SIGINT", "SIGTERM")


class StopSignal:
    """Notes the first signal while it is entered.

    Only the main thread of a process hears signals; elsewhere, and where a program has handlers of
    its own, they do what they did before.

    Attributes:
        asked: Whether to stop.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is not threading.main_thread():
            return self
        usual = (signal.default_int_handler, signal.SIG_DFL)
        for name in _SIGNALS:
            number = getattr(signal, name)
            if signal.getsignal(number) in usual:
                self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        with contextlib.suppress(OSError):  # not by way of sys.stderr, which may be in use now
            os.write(2, b"\nstopping after this epoch; once more stops at once\n")
