"""Parameters: every value within its declaration, to storage and back without loss."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from paceline.errors import SpaceError
from paceline.search_space import HyperParameters, Parameter, Space

SAMPLINGS = ["linear", "log", "reverse_log"]


def only(hp: HyperParameters) -> Parameter:
    """The one parameter that was declared."""
    (parameter,) = hp.parameters.values()
    return parameter


def int_parameter(*args: Any, **kwargs: Any) -> Parameter:
    hp = HyperParameters()
    hp.Int("n", *args, **kwargs)
    return only(hp)


def float_parameter(*args: Any, **kwargs: Any) -> Parameter:
    hp = HyperParameters()
    hp.Float("x", *args, **kwargs)
    return only(hp)


@st.composite
def declared_ints(draw: st.DrawFn) -> Parameter:
    sampling = draw(st.sampled_from(SAMPLINGS))
    low = draw(st.integers(-1000, 1000) if sampling == "linear" else st.integers(1, 1000))
    high = low + draw(st.integers(0, 5000))
    step = draw(st.none() | st.integers(1 if sampling == "linear" else 2, 60))
    return int_parameter(low, high, step, sampling)


@st.composite
def declared_floats(draw: st.DrawFn) -> Parameter:
    sampling = draw(st.sampled_from(SAMPLINGS))
    if sampling == "linear":
        low = draw(st.floats(-1e3, 1e3, allow_subnormal=False))
        high = low + draw(st.floats(0, 1e3, allow_subnormal=False))
        step = draw(st.none() | st.floats(1e-2, 300))
    else:
        low = draw(st.floats(1e-8, 10))
        high = low * draw(st.floats(1, 1e6))
        step = draw(st.none() | st.floats(1.1, 100))
    return float_parameter(low, high, step, sampling)


@st.composite
def declared_choices(draw: st.DrawFn) -> Parameter:
    # What a storage keeps: finite numbers, whole ones of 64 bits.
    numbers = st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)
    kind = draw(st.sampled_from([*numbers, st.text(max_size=5), st.booleans()]))
    hp = HyperParameters()
    hp.Choice("c", draw(st.lists(kind, min_size=1, max_size=6)))
    return only(hp)


declared = st.one_of(declared_ints(), declared_floats(), declared_choices())


def stored_values(parameter: Parameter, draw: Any) -> Any:
    """A value as a sampler of Optuna returns it."""
    known = parameter.distribution
    if isinstance(known, CategoricalDistribution):
        return draw(st.sampled_from(known.choices))
    if isinstance(known, IntDistribution):
        return known.low + known.step * draw(st.integers(0, (known.high - known.low) // known.step))
    if known.step is None:
        return draw(st.floats(known.low, known.high))
    steps = draw(st.integers(0, round((known.high - known.low) / known.step)))
    return min(known.low + steps * known.step, known.high)


@given(declared, st.data())
def test_from_storage_and_to_storage_are_exact(parameter: Parameter, data: Any) -> None:
    real = parameter.from_storage(stored_values(parameter, data.draw))
    assert type(real) is type(parameter.default)
    stored = parameter.to_storage(real)
    assert parameter.from_storage(stored) == real
    assert parameter.to_storage(parameter.from_storage(stored)) == stored
    # Optuna itself takes the stored value for one of the distribution.
    trial = optuna.trial.create_trial(
        params={parameter.storage_name: stored},
        distributions={parameter.storage_name: parameter.distribution},
        value=0.0,
    )
    assert trial.params == {parameter.storage_name: stored}


@given(declared)
def test_the_values_of_a_grid_are_in_order_and_survive_storage(parameter: Parameter) -> None:
    values = list(parameter.values())
    assert len(values) == len(set(values))
    for value in [*values[:50], *values[-50:]]:
        assert parameter.from_storage(parameter.to_storage(value)) == value
    if not isinstance(parameter.distribution, CategoricalDistribution) or parameter.name != "c":
        assert values == sorted(values)  # type: ignore[type-var]
    if parameter.is_finite:
        assert len(parameter.values(every=True)) == parameter.cardinality
        assert set(values) <= set(parameter.values(every=True))
    else:
        assert len(values) == 10


@given(declared)
def test_json_is_exact(parameter: Parameter) -> None:
    again = Parameter.from_json(json.loads(json.dumps(parameter.to_json())))
    assert again == parameter
    assert again.same_values(parameter)
    assert [type(v) for v in again.values()] == [type(v) for v in parameter.values()]


@given(st.sampled_from(SAMPLINGS), st.floats(1e-6, 1.0), st.floats(1.0, 1e4), st.floats(0, 1))
@example("reverse_log", 1e-4, 100.0, 0.0)
@example("reverse_log", 1e-4, 100.0, 1.0)
def test_a_continuous_float_reaches_every_part_of_its_scale(
    sampling: str, low: float, ratio: float, share: float
) -> None:
    high = low * ratio
    parameter = float_parameter(low, high, sampling=sampling)
    share = 1 - share if sampling == "reverse_log" else share
    stored = low + (high - low) * share if sampling == "linear" else low * (high / low) ** share
    stored = min(max(stored, low), high)
    real = parameter.from_storage(stored)
    assert low <= real <= high  # type: ignore[operator]
    expected = low + high - stored if sampling == "reverse_log" else stored
    assert real == pytest.approx(expected, rel=1e-12, abs=1e-15 * high)


def test_a_mirrored_parameter_maps_its_bounds_onto_each_other_exactly() -> None:
    parameter = float_parameter(1e-4, 0.3, sampling="reverse_log")
    assert parameter.storage_name == "x[reversed]"
    assert parameter.distribution == FloatDistribution(1e-4, 0.3, log=True)
    assert parameter.from_storage(1e-4) == 0.3
    assert parameter.from_storage(0.3) == 1e-4
    assert parameter.to_storage(1e-4) == 0.3
    ints = int_parameter(1, 1000, sampling="reverse_log")
    assert ints.storage_name == "n[reversed]"
    assert [ints.from_storage(stored) for stored in (1, 2, 1000)] == [1000, 999, 1]
    assert type(ints.from_storage(1)) is int


@given(st.floats(1e-6, 1e-2), st.floats(1.0, 1e3), st.floats(0, 1))
def test_any_mirrored_float_comes_back_within_a_rounding_error(
    low: float, ratio: float, share: float
) -> None:
    high = low * ratio
    parameter = float_parameter(low, high, sampling="reverse_log")
    real = min(low + (high - low) * share, high)
    back = parameter.from_storage(parameter.to_storage(real))
    # Half a unit in the last place of low + high, for the sum and each of two differences.
    assert abs(back - real) <= 1.5 * math.ulp(low + high)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        (float_parameter(0.1, 0.5, step=0.1), [0.1, 0.2, 0.3, 0.4, 0.5]),
        (float_parameter(0, 1, step=0.2), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (float_parameter(0.25, 1, step=0.5), [0.25, 0.75]),
        (float_parameter(0.001, 10, step=10, sampling="log"), [0.001, 0.01, 0.1, 1.0, 10.0]),
        (float_parameter(1, 8, step=2, sampling="reverse_log"), [1.0, 5.0, 7.0, 8.0]),
        (float_parameter(0.5, 0.5), [0.5]),
        (float_parameter(0, 1, step=2), [0.0]),
        (float_parameter(0, 9), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]),
        (int_parameter(6, 13, step=3), [6, 9, 12]),
        (int_parameter(2, 32, step=2, sampling="log"), [2, 4, 8, 16, 32]),
        (int_parameter(1, 8, step=2, sampling="reverse_log"), [1, 5, 7, 8]),
        (int_parameter(1, 5, sampling="log"), [1, 2, 3, 4, 5]),
        (int_parameter(1, 512, sampling="log"), [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]),
        (int_parameter(7, 7), [7]),
    ],
)
def test_what_a_grid_walks(parameter: Parameter, expected: list[Any]) -> None:
    assert list(parameter.values()) == pytest.approx(expected, rel=1e-14)
    assert [type(value) for value in parameter.values()] == [type(value) for value in expected]


def test_steps_of_a_float_are_the_decimals_that_were_written() -> None:
    assert float_parameter(0.1, 0.9, step=0.1).values()[2] == 0.3
    assert float_parameter(0.001, 10, step=10, sampling="log").values()[1] == 0.01


@pytest.mark.parametrize("sampling", ["log", "reverse_log"])
def test_a_log_scale_without_step_is_spread_evenly(sampling: str) -> None:
    values = float_parameter(1e-4, 1e-1, sampling=sampling).values()
    assert (values[0], values[-1]) == (1e-4, 1e-1)
    points = [1e-4 + 1e-1 - v for v in values] if sampling == "reverse_log" else values  # type: ignore[operator]
    ratios = [abs(math.log(b / a)) for a, b in itertools.pairwise(points)]  # type: ignore[operator]
    # The mirror image loses digits where 0.1 dwarfs 1e-4: 1e-13 relative.
    assert ratios == pytest.approx([math.log(1e3) / 9] * 9, rel=1e-9)


def test_types_are_those_of_the_declaration() -> None:
    parameter = float_parameter(0, 1)
    assert type(parameter.check(1)) is float
    assert type(parameter.check(np.float32(0.5))) is float
    ints = int_parameter(np.int64(1), np.int32(5))
    assert type(ints.check(3.0)) is int
    assert type(ints.check(np.int8(3))) is int
    hp = HyperParameters()
    hp.Boolean("b")
    assert only(hp).check(np.True_) is True


@pytest.mark.parametrize(
    ("parameter", "value", "said"),
    [
        (
            int_parameter(1, 5),
            6,
            'hyperparameter "n": the value 6 is not an integer from 1 to 5',
        ),
        (int_parameter(2, 8, step=2), 3, "the value 3 is not .* from 2 to 8 in steps of 2"),
        (int_parameter(0, 5), True, "the value True is not an integer"),
        (int_parameter(0, 5), 1.5, "the value 1.5 is not an integer"),
        (int_parameter(0, 5), "3", "the value '3' is not an integer"),
        (int_parameter(0, 5), None, "the value None is not an integer"),
        (float_parameter(0, 1), 1.0000001, "is not a number from 0.0 to 1.0"),
        (float_parameter(0, 1), float("nan"), "the value nan is not a number"),
        (float_parameter(0, 1), False, "the value False is not a number"),
        (float_parameter(0, 1, step=0.25), 0.3, "from 0.0 to 1.0 in steps of 0.25"),
        (float_parameter(1, 8, step=2, sampling="log"), 3, "is not one of 1.0, 2.0, 4.0, 8.0"),
    ],
)
def test_a_value_outside_is_refused_with_the_bounds(
    parameter: Parameter, value: Any, said: str
) -> None:
    with pytest.raises(SpaceError, match=said):
        parameter.check(value)
    with pytest.raises(SpaceError, match=said):
        parameter.to_storage(value)


def test_rounding_errors_find_their_grid_point() -> None:
    assert float_parameter(0.1, 0.9, step=0.1).check(0.1 + 2 * 0.1) == 0.3
    assert float_parameter(1, 100, step=3, sampling="log").check(9 * (1 + 1e-12)) == 9.0


@pytest.mark.parametrize(
    ("low", "high", "step"),
    [(100, 101, 1 / 3), (0.1234567890123, 9, 1 / 7), (1e6, 1e6 + 1, 0.01), (1e9, 1e9 + 10, 0.1)],
)
def test_grids_that_floats_hardly_hold_still_work(low: float, high: float, step: float) -> None:
    parameter = float_parameter(low, high, step=step)
    assert len(parameter.values()) == math.floor((high - low) / step + 1e-6) + 1
    for value in parameter.values():
        assert parameter.from_storage(parameter.to_storage(value)) == value


@pytest.mark.parametrize(
    ("step", "sampling"), [(1e-9, "linear"), (1.00001, "log"), (1.00001, "reverse_log")]
)
def test_a_step_too_small_to_list_is_refused(step: float, sampling: str) -> None:
    with pytest.raises(
        SpaceError, match=r'hp.Float\("x"\): step .* values, which are too many. Pass a larger step'
    ):
        float_parameter(1, 10, step=step, sampling=sampling)


def test_is_finite_and_cardinality() -> None:
    assert int_parameter(1, 10**12).cardinality == 10**12
    assert int_parameter(1, 1000, sampling="log").cardinality == 1000
    assert len(int_parameter(1, 1000, sampling="log").values()) == 10
    assert len(int_parameter(1, 1000, sampling="log").values(every=True)) == 1000
    assert float_parameter(0, 1).cardinality is None
    assert not float_parameter(0, 1).is_finite
    assert float_parameter(1, 1).cardinality == 1
    assert float_parameter(0, 1, step=0.1).cardinality == 11


@pytest.mark.parametrize("sampler", [optuna.samplers.RandomSampler, optuna.samplers.TPESampler])
def test_values_of_optuna_samplers_come_through(sampler: Any) -> None:
    hp = HyperParameters()
    hp.Int("steps", 8, 129, step=8)
    hp.Int("reversed", 1, 100, sampling="reverse_log")
    hp.Float("rate", 0.1, 0.9, step=0.1)
    hp.Float("late", 1e-4, 1e-1, sampling="reverse_log")
    hp.Float("powers", 1e-4, 1, step=10, sampling="log")
    hp.Choice("name", ["a", "b"])
    distributions: dict[str, BaseDistribution] = {
        name: parameter.distribution for name, parameter in hp.parameters.items()
    }
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(sampler=sampler(seed=0))
        for _ in range(25):
            trial = study.ask(distributions)
            for name, stored in trial.params.items():
                parameter = hp.parameters[name]
                real = parameter.from_storage(stored)
                assert parameter.from_storage(parameter.to_storage(real)) == real
            study.tell(trial, trial.params["rate"])
    finally:
        optuna.logging.set_verbosity(verbosity)


def test_a_space_learns_and_refuses_conflicts() -> None:
    space = Space()
    first = HyperParameters()
    first.Int("n", 1, 5)
    first.Choice("flag", [0, 1])
    space.learn(first.parameters)
    assert list(space.parameters) == ["n", "flag"]
    assert all(each.is_finite for each in space.parameters.values())

    other = HyperParameters()
    other.Float("new", 0, 1)
    other.Int("n", 1, 6)
    with pytest.raises(SpaceError, match=r'"n": its bounds changed from .*high=5.*high=6'):
        space.learn(other.parameters)
    assert list(space.parameters) == ["n", "flag"]  # nothing of a refused hp is kept

    bools = HyperParameters()
    bools.Choice("flag", [False, True])
    with pytest.raises(SpaceError, match=r'"flag": its bounds changed'):
        space.learn(bools.parameters)

    moved = HyperParameters()
    moved.Int("n", 1, 5, default=3)  # a default is no bound
    moved.Float("x", 0, 1)
    space.learn(moved.parameters)
    assert not all(each.is_finite for each in space.parameters.values())
    assert Space.from_json(json.loads(json.dumps(space.to_json()))).parameters == space.parameters
