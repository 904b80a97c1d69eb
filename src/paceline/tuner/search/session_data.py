"""Data sets that are read in the session, for a search in the session's own process.

A ``tf.data.Dataset`` and the like cannot be sent. The process asks for their batches one by one,
and the session reads them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from paceline.data.adapters import (
    DistantDataset,
    family,
    is_data_set,
    is_read_once,
    is_wrapped,
    length_of,
    of_one_size,
    passes,
)

if TYPE_CHECKING:
    from paceline.executor.session.child import SessionLink

#: Arguments of ``search`` that may be a data set.
_DATA = ("x", "validation_data")


def is_read_in_session(x: Any) -> bool:
    """Whether a value is a data set that cannot be sent."""
    return is_data_set(x) and family(x) is not None and not is_read_once(x)


class SessionDataset(DistantDataset):
    """A data set of the session, as it is sent; ``ask`` asks the session for its batches."""

    def __init__(self, name: str, x: Any, ask: Callable[..., Any] | None = None) -> None:
        self._name, self._ask = name, ask
        self.family, self.length = str(family(x)), length_of(x)
        self.of_one_size, self.wrapped = of_one_size(x), is_wrapped(x)

    def read_by(self, link: SessionLink) -> SessionDataset:
        """The data set in the process, whose batches ``link`` asks for."""
        self._ask = link.ask
        return self

    def read(self) -> Iterator[Any]:
        """See ``DistantDataset``."""
        assert self._ask is not None
        number = self._ask("open_data", self._name)
        while True:
            batch, error = self._ask("read_data", number)
            if error is not None:
                raise RuntimeError(error)
            if batch is None:
                return
            yield batch[0]


@dataclass
class DataOfSession:
    """The data sets of a search, in the session."""

    given: Mapping[str, Any]  # arguments of ``search``
    made: Callable[[Any], Any] = lambda batch: batch  # what is sent of a batch
    _open: dict[int, Iterator[Any]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def sent(self, ask: Callable[..., Any] | None = None) -> dict[str, SessionDataset]:
        """What is sent in the place of data sets, by argument."""
        return {
            name: SessionDataset(name, x, ask)
            for name in _DATA
            if is_read_in_session(x := self.given.get(name))
        }

    def here(self) -> dict[str, SessionDataset]:
        """What takes the place of data sets in this process, by argument."""
        functions: dict[str, Any] = {"open_data": self.open, "read_data": self.read}
        return self.sent(lambda name, argument: functions[name](argument))

    def open(self, name: str) -> int:
        """Begins a pass; returns its number."""
        number = next(self._numbers)
        self._open[number] = passes(self.given[name])
        return number

    def read(self, number: int) -> tuple[tuple[Any] | None, str | None]:
        """The next batch of a pass, or None at its end, and why it cannot be read."""
        try:
            batch = next(self._open[number])
            return (self.made(arrays_of(batch)),), None
        except StopIteration:
            del self._open[number]
            return None, None
        except Exception as error:  # whatever the user's data set raises
            return None, f"{type(error).__name__}: {error}"


def arrays_of(batch: Any) -> Any:
    """A batch of any backend's tensors, as arrays."""
    return keras.tree.map_structure(_as_array, batch)


def _as_array(value: Any) -> Any:
    if value is None:
        return None
    for name in ("detach", "cpu"):  # a tensor of PyTorch
        value = getattr(value, name, lambda value=value: value)()
    return np.asarray(value)
