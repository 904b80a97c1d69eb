"""A trial's callbacks draw from random states of its own, whatever others draw in between."""

from __future__ import annotations

import random

import keras
import numpy as np
import pytest

from paceline.pack.callbacks.random_states import OwnRandomStates, RandomStates
from paceline.program import keras_private


def draw(*kinds: str) -> list[float]:
    draws = {
        "python": random.random,
        "numpy": np.random.rand,
        "keras": lambda: keras.ops.convert_to_numpy(keras.random.uniform(())),
    }
    return [float(draws[kind]()) for kind in kinds]


@pytest.mark.parametrize(
    "blocks",
    [
        (["python"], ["python"]),
        ([], ["numpy"], [], ["numpy"]),
        ([], [], ["keras"], ["keras"]),
        (["python", "numpy", "keras"], [], ["keras", "python"]),
    ],
)
def test_blocks_draw_what_one_block_would(blocks: tuple[list[str], ...]) -> None:
    found, together = [], OwnRandomStates(3)
    with together.present():
        expected = draw(*(kind for block in blocks for kind in block))
    own = OwnRandomStates(3)
    for block in blocks:
        before = random.getstate()
        with own.present():
            found += draw(*block)
        assert random.getstate() == before, "nobody else's states change"
        assert (own.drawn is not None) is bool(found)
        random.random()
        np.random.rand()
    assert found == expected


def test_the_states_are_read_once_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    seed_state = keras_private.seed_state

    def counted() -> np.ndarray | None:
        nonlocal reads
        reads += 1
        return seed_state()

    monkeypatch.setattr(keras_private, "seed_state", counted)
    own = OwnRandomStates(3)
    for draws in (False, False, True, False):
        with own.present():
            random.random() if draws else None
    assert reads == 1 + 4, "and once as the seed makes them"
    assert isinstance(own.drawn, RandomStates)
