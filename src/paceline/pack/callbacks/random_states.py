"""The random states that callbacks draw from: Python's, NumPy's, Keras' own, and PyTorch's."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import keras
import numpy as np

from paceline.program import keras_private


@dataclass(frozen=True)
class RandomStates:
    """All of them at one moment."""

    python: Any  # as ``random.getstate`` returns it
    numpy: Any  # as ``np.random.get_state`` returns it
    keras: np.ndarray | None  # of Keras' own generator; None: it has none yet
    torch: np.ndarray | None  # PyTorch's; None if Keras does not run on it

    @classmethod
    def now(cls) -> RandomStates:
        """The present states."""
        torch = None
        if keras.backend.backend() == "torch":
            torch = import_module("torch").get_rng_state().numpy().copy()
        return cls(random.getstate(), np.random.get_state(), keras_private.seed_state(), torch)

    def put_back(self) -> None:
        """Makes them the present states; where Keras had no generator yet, its own stays."""
        if self.keras is not None:
            keras_private.set_seed_state(self.keras)
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        if self.torch is not None:
            torch = import_module("torch")
            torch.set_rng_state(torch.from_numpy(self.torch.copy()))

    def same(self, other: RandomStates) -> bool:
        """Whether nothing was drawn between the moments of both."""
        (_, ours, *where), (_, theirs, *there) = self.numpy, other.numpy
        pairs: list[tuple[Any, Any]] = [(ours, theirs)]
        pairs += [(self.keras, other.keras), (self.torch, other.torch)]
        return (
            where == there
            and self.python == other.python
            and all(np.array_equal(one, two) for one, two in pairs)
        )

    def encoded(self, name: str, arrays: dict[str, np.ndarray]) -> list[Any]:
        """The states as JSON values; their arrays go into ``arrays``, with names that begin so."""
        kind, keys, position, gauss, cached = self.numpy
        arrays[f"{name}.keys"] = np.array(keys)
        if self.keras is not None:
            arrays[f"{name}.seed"] = self.keras
        if self.torch is not None:
            arrays[f"{name}.torch"] = self.torch
        own = [self.python[0], list(self.python[1]), self.python[2]]
        return [own, kind, int(position), int(gauss), float(cached)]

    @classmethod
    def decoded(
        cls, facts: Sequence[Any], name: str, arrays: Mapping[str, np.ndarray]
    ) -> RandomStates:
        """The states that ``encoded`` was called for."""
        (version, keys, gauss), kind, position, has_gauss, cached = facts
        return cls(
            (version, tuple(keys), gauss),
            (kind, arrays[f"{name}.keys"], position, has_gauss, cached),
            arrays.get(f"{name}.seed"),
            arrays.get(f"{name}.torch"),
        )


class OwnRandomStates:
    """The random states of one trial, from which nobody but its callbacks draws.

    They begin from ``seed``, the trial's.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._seeded: RandomStates | None = None  # as the seed makes them, once they were read
        self.drawn: RandomStates | None = None  # None: nothing has been drawn

    @contextmanager
    def present(self) -> Iterator[None]:
        """A block in which they are the present ones."""
        python, numpy_state = random.getstate(), np.random.get_state()
        with keras_private.seed_state_from(self._seed):
            random.seed(self._seed)
            np.random.seed(self._seed)
            if self.drawn is not None:
                self.drawn.put_back()
            elif self._seeded is None:
                self._seeded = RandomStates.now()
            before = self.drawn or self._seeded
            assert before is not None
            try:
                yield
            finally:
                now = RandomStates.now()
                if not now.same(before):
                    self.drawn = now
                random.setstate(python)
                np.random.set_state(numpy_state)
