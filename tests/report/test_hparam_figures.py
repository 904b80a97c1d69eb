"""Slices and parallel coordinates: the scale of an axis, and its labels."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import create_trial

from paceline.report.hparam_figures import axis_of, parallel_figure, slice_figure
from paceline.report.static import log_ticks

DECADES = CategoricalDistribution([10.0**power for power in range(-7, 1)])


def trials(distribution, values, name="lr"):
    found = []
    for number, value in enumerate(values):
        params = {} if value is None else {name: value}
        known = {} if value is None else {name: distribution}
        trial = create_trial(params=params, distributions=known, value=float(number))
        trial.number = number
        found.append(trial)
    return found


@pytest.mark.parametrize(
    ("distribution", "values", "kind"),
    [
        (FloatDistribution(1e-4, 1e-1, log=True), [2e-3, 3e-3], "log"),
        (IntDistribution(8, 64, log=True), [8, 16], "log"),
        (DECADES, [1e-7, 1e-3], "log"),  # a log scale with a step is stored as choices
        (CategoricalDistribution([1, 30, 2000]), [1, 30, 2000], "log"),
        (CategoricalDistribution([16, 32, 64, 128]), [16, 32], "log"),
        (CategoricalDistribution([16, 64, 100]), [16, 64, 100], "linear"),
        (FloatDistribution(1e-7, 1.0), [1e-7, 1.0], "log"),
        (FloatDistribution(0.0, 1.0), [0.0, 1.0], "linear"),
        (FloatDistribution(0.1, 0.5), [0.1, 0.5], "linear"),
        (CategoricalDistribution([True, False]), [True, False], "choice"),
        (CategoricalDistribution(["relu", "elu"]), ["elu"], "choice"),
        (CategoricalDistribution([None, 0.1]), [None, 0.1], "linear"),
    ],
)
def test_the_scale_of_an_axis(distribution, values, kind) -> None:
    axis = axis_of("lr", trials(distribution, values))
    assert axis.kind == kind


def test_choices_keep_their_order() -> None:
    axis = axis_of("lr", trials(CategoricalDistribution(["relu", "elu", "<b>"]), ["elu"]))
    assert axis.choices == ("relu", "elu", "&lt;b&gt;")


@pytest.mark.parametrize(
    ("choices", "labels"),
    [
        (
            ["mobilenet_v3_large_075", "mobilenet_v3_large_100", "resnet"],
            ("mobilene...arge_075", "mobilene...arge_100", "resnet"),
        ),
        (
            [None, "None", True, "True", "relu"],
            ("None", "&quot;None&quot;", "True", "&quot;True&quot;", "relu"),
        ),
        (
            ["a" * 20 + each + "z" * 20 for each in "bc"],
            ("1: aaaaaaaa...zzzzzzzz", "2: aaaaaaaa...zzzzzzzz"),
        ),
        ([1, True, "x"], ("1", "True", "x")),
    ],
)
def test_each_choice_has_a_label_of_its_own(choices, labels) -> None:
    there = [i for i, choice in enumerate(choices) if choice is not None]
    texts = tuple(labels[i] for i in there)
    axis = axis_of("lr", trials(CategoricalDistribution(choices), [choices[i] for i in there]))
    assert axis.choices == labels
    assert tuple(axis.values.values()) == texts
    found = {number: float(number) for number in range(len(there))}
    assert tuple(slice_figure([axis], found, "loss").data[0].x) == texts
    (_, dimension) = parallel_figure([axis], found, "loss", maximize=True).data[0].dimensions
    assert list(dimension["values"]) == there


def test_few_numbers_to_choose_from_are_the_labels() -> None:
    axes = [axis_of("units", trials(CategoricalDistribution([100, 16, 64]), [16, 64], "units"))]
    found = dict(enumerate([0.1, 0.2]))
    assert slice_figure(axes, found, "loss").layout.xaxis.tickvals == (16, 64, 100)
    (_, units) = parallel_figure(axes, found, "loss", maximize=True).data[0].dimensions
    assert units.ticktext == ("16", "64", "100")
    assert units.range == (16, 100)
    many = trials(CategoricalDistribution([10 * i for i in range(40)]), [0, 100], "units")
    assert axis_of("units", many).ticks == []
    steps = trials(IntDistribution(8, 24, step=8), [16, 8], "units")
    assert axis_of("units", steps).ticks == [8, 16, 24]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1e-7, 1.0, [1e-7, 1e-5, 1e-3, 1e-1]),
        (1e-4, 1e-1, [1e-4, 1e-3, 1e-2, 1e-1]),
        (3e-3, 4e-2, [5e-3, 1e-2, 2e-2]),
        (2.1e-3, 8.7e-3, [4e-3, 6e-3, 8e-3]),  # within a decade: no power of ten
        (0.1, 0.1, [0.1]),
    ],
)
def test_the_labels_of_a_log_axis(low, high, ticks) -> None:
    assert log_ticks(low, high) == pytest.approx(ticks)


@given(st.floats(1e-12, 1e12), st.floats(1.05, 1e9))
def test_every_log_axis_has_labels_within_it(low: float, ratio: float) -> None:
    ticks = log_ticks(low, low * ratio)
    assert 2 <= len(ticks) <= 8
    assert low * 0.999 <= min(ticks) < max(ticks) <= low * ratio * 1.001


@pytest.mark.parametrize("values", [[1e-7, 1e-3, 1.0], [2e-3, 3e-3, 5e-3]])
def test_a_log_axis_is_one_in_every_figure(values) -> None:
    axes = [axis_of("lr", trials(FloatDistribution(1e-7, 1.0, log=True), values))]
    found = dict(enumerate([0.1, 0.2, 0.3]))
    axis = slice_figure(axes, found, "loss").layout.xaxis
    assert axis.type == "log"
    assert len(axis.tickvals) == len(axis.ticktext) >= 2
    dimension = parallel_figure(axes, found, "loss", maximize=True).data[0].dimensions[1]
    assert dimension.values == pytest.approx([math.log10(value) for value in values])
    assert dimension.ticktext == axis.ticktext


def test_a_trial_without_the_hyperparameter_has_a_place_of_its_own() -> None:
    axes = [axis_of("lr", trials(FloatDistribution(0.0, 1.0), [0.2, None, 0.8]))]
    found = dict(enumerate([0.1, 0.2, 0.3]))
    (lr,) = slice_figure(axes, found, "loss").data
    assert list(lr.x) == [0.2, 0.8]
    figure = parallel_figure(axes, found, "loss", maximize=False)
    dimension = figure.data[0].dimensions[1]
    assert dimension.values == pytest.approx((0.8, 0.2 - 0.15 * 0.6, 0.2))  # the best one last
    assert dimension.ticktext[0] == "none"
    json.loads(figure.to_json())
