"""The connection to the session's own process, with a process that stands for it."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Thread
from typing import Any

from paceline.compat.interception import own_process
from paceline.executor.base import PackOptions


class WaitsForCommands:
    """A process that has nothing to do."""

    closed = False

    def call(self, call: Any, functions: Any, say: Any, stop: Any, sent: Any) -> None:
        sent()
        functions["commands"](True)

    def close(self) -> None:
        self.closed = True


def test_a_connection_is_closed_at_once_while_the_process_waits_for_commands(monkeypatch):
    process = WaitsForCommands()
    monkeypatch.setattr(own_process, "process_of_session", lambda: nullcontext(process))
    connection = own_process.FitProcess(PackOptions())
    closing = Thread(target=connection.close, kwargs={"now": True}, daemon=True)
    closing.start()
    closing.join(30.0)
    assert process.closed and not closing.is_alive()
