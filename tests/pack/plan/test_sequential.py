"""The plan for one trial at a time: what a trial costs before its first step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from compiled_programs import COMPILED
from paceline.pack.plan.sequential import SequentialProgram
from paceline.program.trace import State


def place(state: State) -> list[Any]:
    """The variables as they are placed, without a program that would train them."""
    return SequentialProgram.place(SequentialProgram.__new__(SequentialProgram), [state])


def test_variables_are_placed_without_a_program_for_each_shape() -> None:
    # Shapes that nothing else has: a program for one of them would not be there yet.
    state = State([jnp.asarray(np.ones((7, 463), np.float32))], [], [np.ones(467)], [])
    before = len(COMPILED)
    placed = place(state)
    assert COMPILED[before:] == []
    assert [[a.shape for a in part] for part in placed] == [[(7, 463)], [], [(467,)], []]
    assert placed[2][0].dtype == jnp.result_type(float)


@pytest.mark.parametrize("kind", [jnp.asarray, np.asarray])
def test_a_step_may_overwrite_what_was_placed(kind: Any) -> None:
    mine = kind(np.ones((64, 64), np.float32))
    ((placed,), *_) = place(State([mine], [], [], []))
    jax.jit(lambda a: a + 1, donate_argnums=0)(placed).block_until_ready()
    assert placed.is_deleted()
    np.testing.assert_array_equal(np.asarray(mine), np.ones((64, 64)))
