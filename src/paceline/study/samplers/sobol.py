"""The sampler ``qmc``: a Sobol sequence whose parameters need not be known in advance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from paceline.search_space import Parameter
from paceline.study.samplers.values import SHIFT, Chooser, seeded_bits, value_at


class Sobol:
    """A Sobol sequence over parameters that are met one by one.

    Each storage name has a coordinate of its own, conditional parameters included. Trial n takes
    point n, so a resumed search needs no stored state. Coordinates are shifted digit by
    digit (an XOR with a number of their own from the seed), which keeps the sequence's evenness.
    """

    _BITS = 30
    _BLOCK = 16

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._coordinates: dict[str, int] = {}

    def learn_names(self, names: Iterable[str]) -> None:
        """Give coordinates to parameters of an earlier session, in the order then met."""
        for name in names:
            self._coordinate(name)

    @property
    def names(self) -> list[str]:
        """The parameters that have coordinates, in their order."""
        return list(self._coordinates)

    def chooser(self, number: int) -> Chooser:
        """Return the chooser of point ``number``."""
        point = np.empty(0)

        def choose(parameter: Parameter) -> Any:
            nonlocal point
            index = self._coordinate(parameter.storage_name)
            if index >= len(point):
                point = self._point(number, index + 1)
            shift = seeded_bits(self._seed, SHIFT, index) >> (32 - self._BITS)
            share = (int(point[index] * 2**self._BITS) ^ shift) / 2**self._BITS
            return parameter.from_storage(value_at(parameter.distribution, share))

        return choose

    def _coordinate(self, name: str) -> int:
        return self._coordinates.setdefault(name, len(self._coordinates))

    def _point(self, number: int, dimensions: int) -> np.ndarray:
        """Return point ``number``, f64[at least ``dimensions``] in [0, 1), not shifted."""
        from scipy.stats import qmc  # a second to import, for this sampler alone

        # More dimensions do not change the first ones: take a block more seldom.
        blocks = -(-dimensions // self._BLOCK)
        engine = qmc.Sobol(blocks * self._BLOCK, scramble=False, bits=self._BITS)
        if number:
            engine.fast_forward(number)
        return engine.random(1)[0]
