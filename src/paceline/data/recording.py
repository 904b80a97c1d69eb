"""What functions of hp ask for, and whether they change what they returned before."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from paceline.errors import DataError

#: Attributes of hp that show all values.
_SHOW_ALL = frozenset(
    "hparams values parameters space to_storage get_config is_active copy".split()
)


class RecordingHP:
    """An hp that records which values a function asks for."""

    def __init__(self, hp: Any) -> None:
        self._hp = hp
        self._asked: list[tuple[str, Any]] = []  # in order: scopes may have the same names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._hp, name)
        if name in _SHOW_ALL:
            self._asked.append((name, sorted(self._hp.hparams.items())))
        if name not in ("Int", "Float", "Choice", "Boolean", "Fixed", "get"):
            return found

        def noted(label: str, *args: Any, **kwargs: Any) -> Any:
            value = found(label, *args, **kwargs)
            self._asked.append((label, value))
            return value

        return noted

    def __getitem__(self, name: str) -> Any:
        return self.get(name)

    def __contains__(self, name: str) -> bool:
        found = name in self._hp
        self._asked.append((name, found))
        return found

    @property
    def key(self) -> str:
        """What was asked for, with the answers, as text; empty: nothing was."""
        return repr(self._asked) if self._asked else ""


class ReturnedArrays:
    """The arrays that functions of hp have returned, and what was in them then."""

    def __init__(self) -> None:
        self._known: list[tuple[np.ndarray, bytes]] = []

    def add(self, values: Any) -> None:
        """Notes what functions return now.

        Raises DataError where they return memory that they returned before with other contents:
        earlier trials would train on the later data.
        """
        new = [leaf for leaf in jax.tree.leaves(values) if isinstance(leaf, np.ndarray)]
        for array, before in self._known:
            shared = any(np.may_share_memory(array, leaf) for leaf in new)
            if shared and _sample(array) != before:
                raise DataError(
                    "search: a function of hp returns an array that it returned before for other "
                    "values, with other numbers in it; return a new array, as by x.copy(), and "
                    "begin the study anew: trials of the other values may have seen these numbers."
                )
        self._known += [(leaf, _sample(leaf)) for leaf in new]


def _sample(array: np.ndarray) -> bytes:
    """The bytes of up to 64 rows, evenly spread; enough to see that an array was filled anew."""
    if not array.ndim or not len(array) or array.dtype.hasobject:
        return b""
    rows = np.linspace(0, len(array) - 1, min(len(array), 64)).astype(int)
    return np.ascontiguousarray(array[rows]).tobytes()
