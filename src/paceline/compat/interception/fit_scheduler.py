"""A fit that trains in a pack, and what finds the packs of fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from paceline.compat.interception.batch_hooks import BatchHooks
from paceline.compat.interception.fit_arguments import FitArguments, ReadFold
from paceline.compat.interception.function_thread import FunctionThread
from paceline.executor.base import EpochReport

if TYPE_CHECKING:
    from paceline.compat.interception.fit_server import SentFit


@dataclass
class PackedFit:
    """A fit that trains in a pack."""

    number: int  # of the executor's job
    thread: FunctionThread  # of the function that called ``fit``
    executor: Any  # of the pack: a ``LocalExecutor``, or a ``ProcessExecutor``
    # Order of the examples in the next epoch, i32[N]; None: the order of the data.
    order: np.ndarray | None = None
    # With the order of the validation data in that epoch; None: they have one order.
    fold: ReadFold | None = None
    # Of the last epoch; None while there is none, or while one is awaited.
    report: EpochReport | None = None
    error: BaseException | None = None  # why the pack gave the fit up; None while it trains
    over: bool = False  # whether the fit has ended, so that its slot is free
    seconds: float = 0.0  # the fit's share of the seconds of its pack so far
    epochs: int = 0  # that are trained
    hooks: BatchHooks | None = None  # between training batches; None: no callback has any
    sent: SentFit | None = None  # as it was sent to the session's process; None on JAX
    died: bool = False  # whether the process that trained it has died
    n_before: int = 0  # epochs that it had when it was sent last

    def take_orders(self, arguments: FitArguments, random: Any) -> None:
        """Takes the orders of the next epoch; ``random`` is as of ``next_order``."""
        self.order = arguments.next_order(random)
        if self.fold is not None and arguments.validation_passes is not None:
            self.fold.validation = arguments.validation_passes.next_order()


class FitScheduler(Protocol):
    """Finds executors for fits and keeps the list of running fits; ``Engine`` is one."""

    @property
    def why_no_packs(self) -> str | None:
        """Why no fit trains in a pack; None: fits do."""
        ...

    @property
    def sends(self) -> bool:
        """Whether fits are sent to the session's own process."""
        ...

    def executor_for(self, arguments: FitArguments, model: Any) -> Any:
        """Returns the executor that has the data of a fit of a built model.

        On JAX, raises DataError if labels or tokens of the data are none of the model's.
        """
        ...

    def number(self) -> int:
        """Returns a number that no fit has had."""
        ...

    def before_fit(self, thread: FunctionThread, model: Any, callbacks: list[Any]) -> None:
        """Returns when no other running function needs what the fit will change."""
        ...

    def add(self, packed_fit: PackedFit, model: Any, callbacks: list[Any]) -> None:
        """Registers a fit that its executor has queued."""
        ...

    def say(self, text: str) -> None:
        """Passes a note on to the user; the same note is passed on once only."""
        ...
