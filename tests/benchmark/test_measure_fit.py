"""Keras' own fit, timed; why its first epoch is slow."""

from __future__ import annotations

import pytest

import toys
from paceline.benchmark.measure import keras_fit as measure_fit_module
from paceline.benchmark.measure.cell import nothing_cached
from paceline.benchmark.measure.keras_fit import CompileMoments, length, listening, measure_fit
from paceline.benchmark.records import CellConfig
from paceline.data.arrays import prepare

FIT = CellConfig(8, plan="fit")


@pytest.mark.parametrize(
    ("intervals", "seconds"),
    [
        ([], 0.0),
        ([(0, 1), (2, 4)], 3.0),
        ([(0, 10), (2, 4)], 10.0),
        ([(2, 6), (0, 4)], 6.0),
        ([(0, 1), (0, 1)], 1.0),
    ],
)
def test_a_second_counts_once(intervals, seconds):
    assert length(intervals) == seconds


def test_events_within_events_are_told_apart():
    compiling = CompileMoments()
    compiling.intervals.update(
        {
            measure_fit_module._TRACE: [(0.0, 4.0), (1.0, 2.0), (20.0, 21.0)],
            measure_fit_module._LOWER: [(4.0, 6.0)],
            measure_fit_module._COMPILE: [(5.0, 5.5), (6.0, 9.0), (30.0, 31.0)],
        }
    )
    trace, lower, compiled, programs = compiling.split(until=10.0)
    assert (trace, lower, compiled, programs) == (4.0, 1.5, 3.5, 2)


def test_the_parts_of_a_first_epoch_make_it_up():
    with nothing_cached():
        measurement, first = measure_fit(toys.softmax, prepare(*toys.data(40)), FIT, patience=0.0)
    assert (measurement.state, measurement.config, measurement.steps) == ("measured", FIT, 5)
    assert measurement.runs == measure_fit_module.EPOCHS
    assert first.steps == 5
    assert first.programs >= 1
    assert first.first > first.later > 0
    # A part is missing, or counted twice, where this is far from 1. Timings of a busy machine
    # scatter; compiling takes tens of times as long as anything else.
    assert first.explained / first.extra == pytest.approx(1, abs=0.25)
    assert first.compile > 0 and first.trace > 0


@pytest.mark.parametrize("n", [pytest.param(40, marks=pytest.mark.slow), 44, 5])
def test_an_epoch_is_as_long_as_it_was(n):
    """With a last batch that is not full, too."""
    data = prepare(*toys.data(n))
    measurement, first = measure_fit(toys.softmax, data, FIT, patience=0.0)
    assert measurement.epoch(n) == pytest.approx(first.later)


def test_of_much_data_a_part_is_taken():
    data = prepare(*toys.data(50))
    measurement, first = measure_fit(
        toys.softmax, data, FIT, seconds_per_step=measure_fit_module.LONGEST / 3, patience=0.0
    )
    assert (measurement.steps, first.steps) == (3, 3)


def test_a_model_that_fails_is_a_cell_that_failed():
    def build():
        raise ValueError("no model today")

    measurement, first = measure_fit(build, prepare(*toys.data()), FIT)
    assert (measurement.state, measurement.reason, first) == (
        "failed",
        "ValueError: no model today",
        None,
    )


def test_nothing_is_heard_afterwards():
    with listening() as compiling:
        pass
    measure_fit_module._tell(measure_fit_module._COMPILE, 1.0)
    assert compiling.intervals[measure_fit_module._COMPILE] == []
