"""Which constants become inputs: what differs, and everything once that was not enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paceline.program.canonical import Unpackable, canonicalise
from paceline.program.step_template import StepTemplate
from paceline.program.trace import Step


def step(
    rate: float = 0.3, scale: float = 2.5, batch: int = 4, function: Callable | None = None
) -> Step:
    """Constants: rate, scale, a 0 to compare with, and 1 / batch of a mean."""

    def run(x: Any) -> Any:
        return jnp.where(x > 0.0, x * rate, x * scale).sum() / batch

    closed = jax.make_jaxpr(function or run)(jnp.ones(batch))
    return Step(closed, canonicalise(closed), ("loss",))


def values(one: Step, indices: Any) -> list[float]:
    return [round(float(one.canonical.constants[i].value), 6) for i in indices]


def admitted(role: StepTemplate, *trials: Step) -> StepTemplate:
    for trial in trials:
        role.admit(trial.canonical.constants)
    return role


def test_constants_that_differ_are_lifted_and_no_others() -> None:
    role = admitted(StepTemplate(step(), None), step(), step(rate=0.4))
    assert role.stale
    role.settle(2)
    assert values(role.full, role.lifted) == [0.3]
    assert not role.stale


def test_of_one_trial_all_but_special_numbers_are_lifted() -> None:
    role = admitted(StepTemplate(step(), None), step())
    role.settle(1)
    assert values(role.full, role.lifted) == [0.3, 2.5, 4.0]
    admitted(role, step(rate=0.9, scale=0.8))
    assert not role.stale


def test_a_later_difference_widens_to_everything_once() -> None:
    role = admitted(StepTemplate(step(), None), step(), step(rate=0.4))
    role.settle(2)
    first = role.lifted
    admitted(role, step(scale=0.1))
    assert role.stale and not role.widened
    role.settle(3)
    assert role.widened and not role.stale
    assert set(first) < set(role.lifted)
    assert len(role.lifted) == sum(c.liftable for c in role.full.canonical.constants)
    widest = role.lifted
    for n, trial in enumerate([step(rate=0.0), step(scale=1.0), step(rate=float("nan"))]):
        admitted(role, trial)
        assert not role.stale
        role.settle(4 + n)
        assert role.lifted == widest


def test_trials_that_were_all_the_same_widen_once_as_well() -> None:
    role = admitted(StepTemplate(step(), None), step(), step())
    role.settle(2)
    assert role.lifted == ()
    admitted(role, step(rate=0.4))
    role.settle(3)
    assert role.widened
    admitted(role, step(scale=0.4))
    assert not role.stale


def test_settling_again_with_nothing_new_changes_nothing() -> None:
    role = admitted(StepTemplate(step(), None), step())
    role.settle(1)
    first = role.lifted
    role.settle(5)
    assert role.lifted == first and not role.widened


def test_nan_equals_itself() -> None:
    role = admitted(StepTemplate(step(rate=np.nan), None), step(rate=np.nan))
    assert not role.observed


def test_the_smaller_batch_keeps_what_hangs_on_its_size() -> None:
    role = admitted(StepTemplate(step(), step(batch=2)), step(), step(rate=0.4))
    role.verify_tail(step(rate=0.4).canonical.constants, step(rate=0.4, batch=2))
    role.settle(2)
    assert role.tail_lifted == role.lifted
    admitted(role, step(scale=3.5))
    role.settle(3)
    assert role.widened and role.tail is not None
    own = set(role.lifted) - set(role.tail_lifted)
    assert values(role.full, own) == [4.0]
    assert values(role.tail, own) == [2.0]


def mixed(rate: float, batch: int) -> Step:
    return step(batch=batch, function=lambda x: (x * (rate / batch)).sum())


def test_a_number_that_mixes_rate_and_size_is_refused() -> None:
    role = StepTemplate(mixed(0.3, 4), mixed(0.3, 2))
    with pytest.raises(Unpackable, match="Use a batch size that divides the data"):
        role.admit(mixed(0.4, 4).canonical.constants)
    assert not role.observed


def test_a_smaller_batch_of_another_structure_is_refused() -> None:
    role = StepTemplate(step(), step(batch=2))
    other = step(batch=2, function=lambda x: (x * 0.3).sum())
    with pytest.raises(Unpackable, match="Use a batch size that divides the data"):
        role.verify_tail(step().canonical.constants, other)


def test_a_smaller_batch_with_other_numbers_is_refused() -> None:
    role = StepTemplate(step(), step(batch=2))
    with pytest.raises(Unpackable, match="Use a batch size that divides the data"):
        role.verify_tail(step(rate=0.4).canonical.constants, step(rate=0.5, batch=2))
