"""An executor for each set of data that fits train on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from paceline.compat.interception.fit_arguments import FitArguments, copied
from paceline.executor.local import LocalExecutor

#: Data sets that stay on the device while no fit needs them.
_IDLE = 4


class Executors:
    """Executors, by the content of their data.

    Args:
        notes: Told what the user may want to know.
        **arguments: Further arguments of ``LocalExecutor``.
    """

    def __init__(self, notes: Callable[[str], None], **arguments: Any) -> None:
        self._notes, self._arguments = notes, arguments
        self._by_key: dict[tuple[Any, ...], LocalExecutor] = {}  # the latest used last

    def __iter__(self) -> Iterator[LocalExecutor]:
        return iter(list(self._by_key.values()))

    def of(self, request: FitArguments) -> LocalExecutor:
        """The executor for a fit."""
        key = request.key()
        executor = self._by_key.pop(key, None)
        if executor is None:
            self._drop_idle(_IDLE - 1)
            validation = None if request.validation is None else copied(request.validation)
            executor = LocalExecutor(
                copied(request.data),
                validation,
                validation_batch_size=request.validation_batch_size,
                shuffle=request.shuffle,
                in_order=True,  # of the calls nothing is known
                note=self._notes,
                **self._arguments,
            )
        self._by_key[key] = executor
        return executor

    def close(self) -> None:
        """Drops all."""
        self._drop_idle(0, busy=True)

    def _drop_idle(self, keep: int, *, busy: bool = False) -> None:
        idle = [key for key, executor in self._by_key.items() if busy or not executor.busy]
        for key in idle[: max(0, len(idle) - keep)]:
            self._by_key.pop(key).close()
