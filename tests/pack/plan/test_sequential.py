"""The plan for one trial at a time: what a trial costs before its first step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paceline.pack.plan.sequential import SequentialProgram
from paceline.program.trace import State


def test_variables_are_placed_without_a_program_for_each_shape() -> None:
    programs: list[str] = []
    listening = [True]

    def on_duration(event: str, duration_secs: float, **_: Any) -> None:
        if listening and "backend_compile" in event:
            programs.append(event)

    # Shapes that nothing else has: a program for one of them would not be there yet.
    state = State([jnp.asarray(np.ones((7, 463), np.float32))], [], [np.ones(467)], [])
    jax.monitoring.register_event_duration_secs_listener(on_duration)
    placed = SequentialProgram.place(SequentialProgram.__new__(SequentialProgram), [state])
    listening.clear()
    assert [[a.shape for a in part] for part in placed] == [[(7, 463)], [], [(467,)], []]
    assert placed[2][0].dtype == jnp.result_type(float)
    assert programs == []


@pytest.mark.parametrize("kind", [jnp.asarray, np.asarray])
def test_a_step_may_overwrite_what_was_placed(kind: Any) -> None:
    mine = kind(np.ones((64, 64), np.float32))
    state = State([mine], [], [], [])
    ((placed,), *_) = SequentialProgram.place(SequentialProgram.__new__(SequentialProgram), [state])
    jax.jit(lambda a: a + 1, donate_argnums=0)(placed).block_until_ready()
    assert placed.is_deleted()
    np.testing.assert_array_equal(np.asarray(mine), np.ones((64, 64)))
