"""Acts on a cluster at moments of a search."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from paceline.executor.ray.pool import RayPool
from paceline.executor.remote.messages import RoundOrder
from paceline.executor.remote.pool import MachineAnswered


class Hook:
    """Calls a function when the search sends its n-th order, or gets its n-th answer.

    Attributes:
        pids: Name of a worker -> its process.
        orders: Name of a worker -> its orders, once ``at_order`` was called.
        done: Whether the function was called.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.pids: dict[str, int] = {}
        self.orders: dict[str, list[RoundOrder]] = {}
        self.done = False
        self._patch = patch
        welcome = RayPool._welcome

        def noted(pool: RayPool, worker: Any, facts: Any) -> Any:
            self.pids[worker.name] = facts.pid
            return welcome(pool, worker, facts)

        patch.setattr(RayPool, "_welcome", noted)

    def at_order(self, n: int, act: Callable[[str], None], *, workers: int = 1) -> None:
        """Just after the n-th order has gone out, with the worker's name.

        Args:
            n: Number of the order, from 1.
            act: What is done.
            workers: So many workers must have had orders: until then, later orders count instead.
        """
        send, left = RayPool.send, [n]

        def sent(pool: RayPool, host: str, order: Any) -> None:
            send(pool, host, order)
            self.orders.setdefault(host, []).append(order)
            left[0] -= 1
            if left[0] <= 0 and len(self.orders) >= workers and not self.done:
                self.done = True
                act(host)

        self._patch.setattr(RayPool, "send", sent)

    def hold_answers_until(self, n: int) -> None:
        """Once the function was called, the search hears no answer before n workers have joined."""
        wait = RayPool.wait
        held: list[Any] = []

        def waited(pool: RayPool, seconds: float) -> list[Any]:
            events = [*held, *wait(pool, seconds)]
            held.clear()
            if self.done and len(self.pids) < n:
                held.extend(event for event in events if isinstance(event, MachineAnswered))
                events = [event for event in events if not isinstance(event, MachineAnswered)]
            return events

        self._patch.setattr(RayPool, "wait", waited)

    def when_given_up(self, act: Callable[[], None]) -> None:
        """Just after the search has given a worker up, once."""
        died, left = RayPool._died, [1]

        def given_up(pool: RayPool, worker: Any, why: str) -> Any:
            found = died(pool, worker, why)
            if left:
                left.clear()
                act()
            return found

        self._patch.setattr(RayPool, "_died", given_up)

    def kill(self, host: str) -> None:
        os.kill(self.pids[host], signal.SIGKILL)
