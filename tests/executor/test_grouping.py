"""Which trials share a group, which are refused and why, and which need not be traced."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest

import toys
from executor.fakes import numbers
from paceline.data.arrays import prepare
from paceline.data.folds import Fold
from paceline.data.inputs import TrialInputs
from paceline.executor.base import Job, SearchData
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.sharing.grouping import LocalGroup, TrialGrouper
from paceline.program import trace
from paceline.program.canonical import Unpackable
from paceline.search_space import HyperParameters
from program.test_smaller_batch import alike

TRAIN, VALIDATION = prepare(*toys.data(48)), prepare(*toys.data(20, seed=1))
#: Everything in the session shares it, so nothing may change it.
INPUTS = TrialInputs(TRAIN, VALIDATION, 16, 16)


@pytest.fixture
def grouper() -> TrialGrouper:
    return TrialGrouper(SearchData(TRAIN, VALIDATION))


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Models whose training step was traced."""
    found, original = [], trace.trace_train

    def counted(model: Any, *args: Any) -> Any:
        found.append(model)
        return original(model, *args)

    monkeypatch.setattr(trace, "trace_train", counted)
    return found


def built(build: Callable[[Any], Any] = toys.dense, **values: Any) -> Any:
    return ModelBuilder(build)(HyperParameters(values=values), 7)


def job(
    number: int, dropout: float = 0.2, build: Callable[[Any], Any] = toys.dense, **attributes: Any
) -> Job:
    def rebuild() -> Any:
        return built(build, dropout=dropout)

    given = {"batch_size": 16} | attributes
    return Job(number, 7, 3, model=rebuild(), rebuild=rebuild, **given)


def constants(group: LocalGroup, number: int) -> list[np.ndarray]:
    found = group.waiting(number)
    assert found is not None
    return [constant.value for constant in itertools.chain(*found.constants)]


# -- who shares a group ----------------------------------------------------------------------------


def test_trials_that_differ_in_numbers_share_a_group_and_keep_their_numbers(grouper) -> None:
    jobs = [job(0, 0.2), job(1, 0.4)]
    one, two = map(grouper.add, jobs)
    assert one is two and grouper.groups == [one]
    assert [each.program for each in jobs] == [one.name] * 2
    assert numbers(one.queue) == [0, 1] and grouper.waiting == 2
    assert one.train.observed, "the dropout rate differs"
    differ = [
        (a.item(), b.item())
        for a, b in zip(constants(one, 0), constants(one, 1), strict=True)
        if a.tobytes() != b.tobytes()
    ]
    # Keras scales what is kept by 1 / (1 - rate); the rate itself decides what is.
    assert all(a < b for a, b in differ) or all(a > b for a, b in differ)
    assert (one.n_seen, one.n_trials, one.example) == (2, 2, 0)


@pytest.mark.parametrize(
    "other",
    [
        {"build": lambda hp: toys.dense_with(hp, "elu")},
        {"batch_size": 8},
        {"setting": replace(INPUTS, key="x scaled by 2")},
        {"setting": replace(INPUTS, steps_per_epoch=2)},
        {"setting": replace(INPUTS, validation=None)},
    ],
    ids=["structure", "batch size", "data", "steps", "no validation"],
)
def test_another_structure_or_other_inputs_make_another_group(grouper, other: Any) -> None:
    grouper.add(job(0))
    made = grouper.add(job(1, **other))
    assert len(grouper.groups) == 2
    assert numbers(made.queue) == [1]


def judged(metric: Callable[[float], Any]) -> Callable[[Any], Any]:
    """A model of one output, whose metric has a number of hp's."""

    def build(hp: Any) -> Any:
        model = keras.Sequential([keras.Input((toys.FEATURES,)), keras.layers.Dense(1)])
        number = hp.Float("dropout", 0.0, 1.0)
        model.compile("sgd", "mse", metrics=[metric(number)])
        return model

    return build


@pytest.mark.parametrize(
    ("metric", "n_groups"),
    [
        (lambda number: keras.metrics.AUC(thresholds=[number / 2, number]), 1),
        (lambda number: keras.metrics.Precision(thresholds=number), 1),
        # Metrics of other shapes are of other programs, one for each number and not for each trial.
        (lambda number: keras.metrics.AUC(num_thresholds=int(10 * number)), 3),
    ],
    ids=["AUC(thresholds)", "Precision(thresholds)", "AUC(num_thresholds)"],
)
def test_thresholds_of_metrics_are_numbers_like_others(grouper, metric, n_groups: int) -> None:
    rates = [0.3, 0.4, 0.5, 0.3, 0.4, 0.5]
    groups = [grouper.add(job(n, rate, judged(metric))) for n, rate in enumerate(rates)]
    assert len(grouper.groups) == n_groups
    assert groups[:3] == groups[3:]


def test_a_job_without_inputs_of_its_own_has_those_of_the_search() -> None:
    grouper = TrialGrouper(SearchData(TRAIN, VALIDATION, validation_batch_size=64))
    work = grouper.add(job(0)).work
    assert (work.train, work.validation, work.batch_size) == (TRAIN, VALIDATION, 16)
    assert work.validation_batch_size == 20, "no more than there are examples"


def test_a_repeat_of_a_trial_says_nothing_of_how_trials_differ(grouper) -> None:
    group = grouper.add(job(0))
    grouper.add(job(1, counts=False))
    assert (group.n_seen, group.n_trials) == (1, 2)


def test_members_of_a_job_wait_one_by_one_the_first_last() -> None:
    """Each with its fold and with callbacks and a model of its own; all begin alike."""
    halves = np.arange(48, dtype=np.int32).reshape(2, 24)
    folds = [Fold(halves[0], halves[1]), Fold(halves[1], halves[0])]
    seen: list[int] = []

    def callbacks(number: int, model: Any) -> list[Any]:
        seen.append(number)
        return [keras.callbacks.Callback()]

    grouper = TrialGrouper(SearchData(TRAIN, TRAIN, fold=(24, 24)))
    group = grouper.add(job(4, folds=folds, callbacks=callbacks))
    assert seen == [4, 5]
    last, first = group.queue
    assert (first.number, last.number) == (4, 5)
    assert (first.fold, last.fold) == tuple(folds)
    assert first.state is last.state
    assert first.driver is not None and first.driver is not last.driver
    assert group.n_trials == 1, "one trial, whatever its members"
    assert (group.work.n_train, group.work.n_validation) == (24, 24)


def test_groups_are_in_the_order_they_were_met_until_they_are_reordered(grouper) -> None:
    one = grouper.add(job(0))
    two = grouper.add(job(1, batch_size=8))
    three = grouper.add(job(2, batch_size=4))
    assert grouper.groups == [one, two, three]
    grouper.reorder([three, one])
    assert grouper.groups == [three, one, two]


# -- who is refused --------------------------------------------------------------------------------


class _EachBatch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


def eager(hp: Any) -> keras.Model:
    model = toys.dense(hp)
    model.run_eagerly = True
    return model


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"build": eager}, "it is compiled with run_eagerly=True"),
        (
            {"callbacks": lambda number, model: [_EachBatch()]},
            r"callbacks: _EachBatch has its own on_train_batch_end\(\)",
        ),
        ({"setting": replace(INPUTS, data=None, why_fit="x is a list")}, "x is a list"),
        ({"setting": replace(INPUTS, data=None)}, "its data are not arrays"),
    ],
)
def test_who_is_refused_is_told_why_and_waits_nowhere(grouper, attributes: Any, why: str) -> None:
    with pytest.raises(Unpackable, match=f"^{why}"):
        grouper.add(job(0, **attributes))
    assert grouper.groups == [] and grouper.waiting == 0


# -- who need not be traced ------------------------------------------------------------------------

RATES = [0.1, 0.4, 0.31, 0.2, 0.25, 0.35]


def test_what_traced_trials_have_shown_need_not_be_traced(grouper, traced, monkeypatch) -> None:
    """Dropout rates between traced ones: to the bit, the constants are those of a trace."""
    for number, rate in enumerate(RATES):
        group = grouper.add(job(number, rate))
    n_traced = len(traced)
    assert n_traced < len(RATES)
    monkeypatch.setattr("paceline.executor.model_builder.structure_of", lambda model: None)
    slow = TrialGrouper(SearchData(TRAIN, VALIDATION))
    for number, rate in enumerate(RATES):
        by_trace = slow.add(job(number, rate))
    assert len(traced) == n_traced + len(RATES)
    assert by_trace.name == group.name and by_trace.train.observed == group.train.observed
    for number in range(len(RATES)):
        for ours, theirs in zip(constants(group, number), constants(by_trace, number), strict=True):
            assert ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes()
        ours, theirs = group.waiting(number), by_trace.waiting(number)
        assert ours is not None and theirs is not None
        assert ours.state is not None and theirs.state is not None
        for part, other in zip(ours.state.lists(), theirs.state.lists(), strict=True):
            for a, b in zip(part, other, strict=True):
                np.testing.assert_array_equal(a, b)


def test_a_model_that_is_not_trained_teaches_and_is_no_trial(grouper, traced) -> None:
    for rate in (0.1, 0.4):
        group = grouper.pretrace(built(dropout=rate), INPUTS)
    assert grouper.groups == [] and group is not None and group.n_seen == 2
    assert len(traced) == 2
    assert grouper.pretrace(built(dropout=0.4), 16) is group
    assert grouper.add(job(0, 0.4)) is group
    assert len(traced) == 2
    assert grouper.groups == [group] and numbers(group.queue) == [0]


def test_models_that_differ_in_a_whole_number_each_show_their_constants(grouper) -> None:
    """It is part of a model's structure, and a constant of the one program."""

    def clipped(norm: int) -> Any:
        model = built(dropout=0.1)
        model.compile(keras.optimizers.SGD(0.1, clipnorm=norm), "sparse_categorical_crossentropy")
        return model

    first, second = (grouper.pretrace(clipped(norm), INPUTS) for norm in (1, 2))
    assert first is second
    assert first.n_seen == 2 and first.train.observed


def test_of_models_of_the_same_classes_the_first_alone_is_traced_on_the_smaller_batch(
    traced, monkeypatch
) -> None:
    def of_width(n: int) -> Job:
        return replace(job(n, build=toys.wide), model=built(toys.wide, units=4 + n))

    jobs = list(map(of_width, range(3)))
    uneven = SearchData(prepare(*toys.data(50)), prepare(*toys.data(19, seed=1)))
    groups = list(map(TrialGrouper(uneven).add, jobs))
    assert traced == [each.model for each in (jobs[0], *jobs)]
    assert len({group.name for group in groups}) == 3
    monkeypatch.setattr("paceline.executor.model_builder._tails_like", lambda *steps: None)
    by_trace = TrialGrouper(uneven)
    for number, group in enumerate(groups):
        other = by_trace.add(of_width(number))
        assert len(group.roles) == 2
        for ours, theirs in zip(group.roles, other.roles, strict=True):
            assert ours.tail is not None and theirs.tail is not None
            alike(ours.tail, theirs.tail)
    assert len(traced) == 4 + 6


def test_class_weights_are_constants_that_no_model_shows(grouper, traced) -> None:
    """So trials that have them are traced, however often the same was seen."""
    weighted = replace(INPUTS, class_weight=np.array([1.0, 2.0, 3.0], np.float32))
    for number in range(2):
        grouper.add(job(number, 0.2, setting=weighted))
    assert len(traced) >= 2
