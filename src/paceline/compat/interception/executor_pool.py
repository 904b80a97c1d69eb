"""An executor for each set of data that fits train on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.compat.interception.fit_arguments import FitArguments, copied
from paceline.data.arrays import ArrayData
from paceline.data.labels import check_labels
from paceline.executor.base import Job, PackOptions, SearchData
from paceline.executor.local import LocalExecutor
from paceline.executor.tokens import TokenChecks
from paceline.executor.training.memory import MemorySharers
from paceline.program import keras_private, trace
from paceline.program.canonical import Unpackable

#: Number of data sets that stay on the device although no fit needs them.
_IDLE = 4


def prepare_model(model: Any, batch: Any, drawn: Callable[[], None] | None = None) -> None:
    """Builds a model as ``fit`` does; arguments as of ``keras_private.symbolic_build``.

    Raises Unpackable if no pack can train the model.
    """
    trace.check_packable(model)
    is_untraced = keras_private.build_untraced(model, batch)
    if is_untraced and drawn is not None:
        drawn()
    keras_private.symbolic_build(model, batch, drawn)
    model.reset_metrics()
    if is_untraced:
        return
    for name, value in trace.metric_results(model).items():
        if value.shape:  # fit would return the array
            raise Unpackable(f"its metric {name!r} is an array, and not a number")


def check_data(model: Any, data: SearchData, tokens: TokenChecks) -> None:
    """Checks labels and tokens of a fit's data against a built model.

    Raises DataError if a label isn't a class of the model, or a number is beyond an Embedding.
    """
    tables = keras_private.embeddings(model)
    for part, what in ((data.train, "training data"), (data.validation, "validation data")):
        if isinstance(part, ArrayData):
            check_labels(model, part, what)
            tokens.check(model, tables, part, what)


def mapped(data: SearchData, function: Callable[[Any], ArrayData]) -> SearchData:
    """The data of an executor, with a function applied to each set of arrays."""
    validation = None if data.validation is None else function(data.validation)
    return replace(data, train=function(data.train), validation=validation)


def executor_of(
    data: SearchData, options: PackOptions, note: Callable[[str], None], sharers: MemorySharers
) -> LocalExecutor:
    """An executor for fits on data; ``sharers`` are those for other data."""
    # Fits do not say which calls follow, so the executor keeps their order.
    executor = LocalExecutor(data, options, note=note, in_order=True, sharers=sharers)
    executor.demand.early = True
    return executor


def job_of(
    number: int,
    model: Any,
    epochs: int,
    batch_size: int,
    order: Callable[[int], np.ndarray],
    batch_callbacks: Any = None,
    fold: Any = None,
) -> Job:
    """The job that trains a fit of a built model; the arguments are as of ``Job``."""
    return Job(
        *(number, number, epochs, batch_size, model),
        rebuild=lambda: model,
        order=order,
        batch_callbacks=batch_callbacks,
        folds=() if fold is None else (fold,),
    )


class ExecutorPool:
    """One executor for each set of data; fits with equal data share an executor."""

    def __init__(self, notes: Callable[[str], None], options: PackOptions) -> None:
        self._notes, self._options = notes, options
        # The one used last comes last.
        self._by_key: dict[tuple[Any, ...], tuple[LocalExecutor, SearchData]] = {}
        self._tokens, self._sharers = TokenChecks(), MemorySharers()

    def __iter__(self) -> Iterator[LocalExecutor]:
        return iter([executor for executor, _ in self._by_key.values()])

    def of(self, arguments: FitArguments, model: Any) -> LocalExecutor:
        """Returns the executor for a fit of a built model; makes it if there is none for the data.

        Raises DataError if a label isn't a class of the model, or a number is beyond an Embedding.
        """
        held = reversed(self._by_key.items())
        key = next((key for key, (_, data) in held if arguments.trains_on(data)), None)
        key = arguments.key() if key is None else key
        executor, data = self._by_key.pop(key, (None, None))
        if executor is None or data is None:
            self._drop_idle(_IDLE - 1)
            data = mapped(arguments.search_data(), copied)
            executor = executor_of(data, self._options, self._notes, self._sharers)
        self._by_key[key] = executor, data
        check_data(model, data, self._tokens)
        return executor

    #: Whether no further fit should come before an epoch has trained.
    full = False

    def settle(self, *, a_few: bool = False) -> bool:
        """As of ``ProcessPool``; here, fits are taken in at once."""
        return False

    def close(self) -> None:
        """Closes and drops all executors."""
        self._drop_idle(0, busy=True)

    def _drop_idle(self, keep: int, *, busy: bool = False) -> None:
        idle = [key for key, (executor, _) in self._by_key.items() if busy or not executor.busy]
        for key in idle[: max(0, len(idle) - keep)]:
            self._by_key.pop(key)[0].close()
