"""An executor for each set of data that fits train on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from paceline.compat.interception.fit_arguments import FitArguments, copied
from paceline.executor.base import PackOptions, SearchData
from paceline.executor.local import LocalExecutor

#: Data sets that stay on the device while no fit needs them.
_IDLE = 4


class Executors:
    """Executors, by the content of their data.

    Args:
        notes: Told what the user may want to know.
        options: Slots, plan and mesh.
    """

    def __init__(self, notes: Callable[[str], None], options: PackOptions) -> None:
        self._notes, self._options = notes, options
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
            data = SearchData(
                copied(request.data),
                validation,
                validation_batch_size=request.validation_batch_size,
                shuffle=request.shuffle,
            )
            # Nothing is known of the calls to come, so the next may need another program.
            executor = LocalExecutor(data, self._options, note=self._notes, in_order=True)
        self._by_key[key] = executor
        return executor

    def close(self) -> None:
        """Drops all."""
        self._drop_idle(0, busy=True)

    def _drop_idle(self, keep: int, *, busy: bool = False) -> None:
        idle = [key for key, executor in self._by_key.items() if busy or not executor.busy]
        for key in idle[: max(0, len(idle) - keep)]:
            self._by_key.pop(key).close()
