"""Trials of several widths that are not traced ride as they would have, had they been traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from marks import slow_where
from paceline.data.arrays import prepare
from paceline.executor.base import Job, SearchData, SiblingModelBuilder
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.sharing.grouping import TrialGrouper
from paceline.pack.pack import SlotTrial
from paceline.program import trace
from paceline.program.formulas.width_formulas import WidthFormulas
from paceline.search_space import HyperParameters
from program.padding.kinds import MORE
from program.padding.test_widths import CLASSES, KINDS, stack

Build = Callable[[Any], Any]
#: The first trial founds the family; the others lie between its largest and smaller widths, but for
#: the last one.
TRIALS = [{"u": 12, "v": 24}, {"u": 20, "v": 8}, {"u": 16, "v": 40}, {"u": 32, "v": 32}]
MAKES = KINDS | MORE
#: How many of the three after the first are not traced, where it is not all.
FORESEEN = dict.fromkeys(
    (
        # Numbers that follow from a width, which other widths could explain by chance.
        *("norms", "residual"),
        # Classes that are not known to take the same steps at any width.
        *("attention", "attentions", "dot"),
        # The group norm's widths cannot be padded: each has a family of its own.
        "separable",
        # The models share a layer, which remembers all of them: no two have one skeleton.
        *("maximum", "minimum", "product", "average"),
    ),
    0,
)


def by_widths(make: Callable[[int, int], Any]) -> Build:
    return lambda hp: make(hp.Int("u", 4, 32, step=4), hp.Int("v", 8, 48, step=8))


def jobs(build: Build, trials: Sequence[Mapping[str, Any]], epochs: int = 2) -> list[Job]:
    """Jobs of these values, which may ride wherever it is proved."""
    found, builder = [], ModelBuilder(build)
    for number, values in enumerate(trials):

        def made(
            others: Mapping[str, Any] | None = None, values: Mapping[str, Any] = values
        ) -> Any:
            return builder(HyperParameters(values={**values, **(others or {})}), 7)

        hp = HyperParameters(values=dict(values))
        model = builder(hp, 7)
        widths = SiblingModelBuilder(
            list(hp.parameters.values()), values, made, epochs, always=True
        )
        found.append(Job(number, 7, epochs, 12, model=model, rebuild=made, widths=widths))
    return found


def data_of(model: Any, n: int) -> Any:
    (x,) = model.inputs
    random = np.random.default_rng(0)
    shape = (n, *x.shape[1:])
    inputs = random.integers(0, 9, shape) if "int" in x.dtype else random.normal(size=shape)
    return prepare(inputs.astype(x.dtype), random.integers(0, CLASSES, n).astype("int32"))


def queued(
    build: Build, trials: Sequence[Mapping[str, Any]], validated: bool = True
) -> tuple[list[tuple[str, SlotTrial]], TrialGrouper]:
    """Each trial with the name of its group, as it waits for a slot."""
    made = jobs(build, trials)
    data = SearchData(data_of(made[0].model, 30), data_of(made[0].model, 20) if validated else None)
    grouper, found = TrialGrouper(data), []
    for job in made:
        group = grouper.add(job)
        trial = group.waiting(job.number)
        assert trial is not None
        found.append((group.name, trial))
    return found, grouper


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Models whose training step was traced, on full or smaller batches."""
    found, original = [], trace.trace_train

    def count(model: Any, *args: Any) -> Any:
        found.append(model)
        return original(model, *args)

    monkeypatch.setattr(trace, "trace_train", count)
    return found


def compare(
    build: Build,
    trials: Sequence[Mapping[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    padded: list[bool] | None = None,
) -> int:
    """Checks each trial against itself where all are traced; returns how many were not traced.

    ``padded`` is given whether each trial is padded.
    """
    asked, predict = [], WidthFormulas.predict

    def noted(self: WidthFormulas, *args: Any) -> Any:
        asked.append(predict(self, *args))
        return asked[-1]

    with monkeypatch.context() as patch:
        patch.setattr(WidthFormulas, "predict", noted)
        ours, grouper = queued(build, trials)
    with monkeypatch.context() as patch:
        patch.setattr(WidthFormulas, "predict", lambda *args: None)
        theirs, other = queued(build, trials)
    if padded is not None:
        padded += [trial.padded_layout is not None for _, trial in ours]
    for (name, trial), (expected, lone) in zip(ours, theirs, strict=True):
        assert name == expected
        for a, b in zip(trial.constants, lone.constants, strict=True):
            assert [c.value.tobytes() for c in a] == [c.value.tobytes() for c in b]
            assert [c.aval for c in a] == [c.aval for c in b]
        for part, (x, y) in enumerate(zip(trial.state.lists(), lone.state.lists(), strict=True)):
            for i, (left, right) in enumerate(zip(x, y, strict=True)):
                assert left.dtype == right.dtype and np.array_equal(left, right), (part, i)
        assert (trial.padded_layout is None) == (lone.padded_layout is None)
        if trial.padded_layout is None or lone.padded_layout is None:
            continue
        assert trial.padded_layout.numbers == lone.padded_layout.numbers
        embedded = trial.padded_layout.embed(trial.state), lone.padded_layout.embed(lone.state)
        for x, y in zip(*(state.lists() for state in embedded), strict=True):
            assert all(map(np.array_equal, x, y))
    assert [g.train.observed for g in grouper.groups] == [g.train.observed for g in other.groups]
    assert grouper.families is not None and other.families is not None
    assert grouper.families.saved == other.families.saved
    return sum(found is not None and found[0] is not None for found in asked)


@pytest.mark.parametrize("name", slow_where(MAKES, lambda name: name != "dense"))
def test_a_trial_that_is_not_traced_is_that_trial(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreseen = compare(by_widths(MAKES[name]), TRIALS, monkeypatch)
    assert foreseen == FORESEEN.get(name, len(TRIALS) - 1)


def classifier(hp: Any) -> Any:
    """Widths, choices and numbers in one model, as people search them."""
    hidden = []
    for i in range(hp.Int("depth", 1, 2)):
        hidden.append(
            layers.Dense(hp.Int(f"u{i}", 4, 32, step=4), hp.Choice("by", ["relu", "tanh"]))
        )
    if hp.Boolean("dropout"):
        hidden.append(layers.Dropout(hp.Float("rate", 0.1, 0.5)))
    return stack((10,), *hidden, optimizer=keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-1)))


def drawn(n: int, seed: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    return [
        {
            "depth": int(random.integers(1, 3)),
            "u0": 4 * int(random.integers(1, 9)),
            "u1": 4 * int(random.integers(1, 9)),
            "by": str(random.choice(["relu", "tanh"])),
            "dropout": bool(random.integers(2)),
            "rate": float(random.uniform(0.1, 0.5)),
            "lr": float(random.uniform(1e-3, 1e-1)),
        }
        for _ in range(n)
    ]


@pytest.mark.slow
def test_choices_and_numbers_beside_one_width(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = [{**values, "depth": 1} for values in drawn(6, 0)]
    assert compare(classifier, trials, monkeypatch) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_choices_and_numbers_beside_widths(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare(classifier, drawn(24, seed), monkeypatch) > 10


def test_without_validation_data(monkeypatch: pytest.MonkeyPatch, counted: list[Any]) -> None:
    (*_, (_, last)), _ = queued(by_widths(KINDS["dense"]), TRIALS, validated=False)
    assert len(last.constants) == 1 and last.padded_layout is not None
    # The first trial, and the largest and a smaller model with the smaller batch of each.
    assert len(counted) == 5


@pytest.mark.slow
def test_what_lies_outside_of_the_family_s_models_is_traced(counted: list[Any]) -> None:
    """Widths of the smaller model differ, so that the second one begins at 8; 1 is another step."""

    def build(hp: Any) -> Any:
        return stack((10,), *(layers.Dense(hp.Choice(name, [1, 4, 8, 12, 16])) for name in "uv"))

    pairs = [(12, 8), (12, 4), (1, 8), (8, 12), (4, 16)]
    found, _ = queued(build, [dict(zip("uv", pair, strict=True)) for pair in pairs])
    names = [name for name, _ in found]
    assert len(set(names)) == 2 and names.count(names[2]) == 1
    traced = {tuple(layer.units for layer in model.layers[:2]) for model in counted}
    assert traced == {(16, 16), (4, 8), (12, 8), (12, 4), (1, 8)}


def test_a_rate_of_zero_is_traced(counted: list[Any]) -> None:
    """It leaves dropout out, which is another step."""

    def build(hp: Any) -> Any:
        first = layers.Dense(hp.Int("u", 4, 32, step=4))
        return stack((10,), first, layers.Dropout(hp.Float("rate", 0.0, 0.5)))

    rates = [0.1, 0.2, 0.3, 0.0, 0.25]
    trials = [{"u": 8 + 4 * i, "rate": rate} for i, rate in enumerate(rates)]
    found, _ = queued(build, trials)
    names = [name for name, _ in found]
    assert len(set(names)) == 2 and names.count(names[3]) == 1
    last = [model.layers[1].rate for model in counted if model.layers[0].units in (20, 24)]
    assert set(last) == {0.0}, "of the last two, the one without dropout is traced"


def test_widths_that_went_together_are_traced_where_they_part(counted: list[Any]) -> None:
    """Two widths of one size in all traced models: which one an extent follows is not known."""

    def build(hp: Any) -> Any:
        return stack((10,), *(layers.Dense(hp.Int(name, 8, 16, step=8)) for name in "uv"))

    found, _ = queued(build, [{"u": 16, "v": 16}, {"u": 8, "v": 16}, {"u": 16, "v": 8}])
    assert len({name for name, _ in found}) == 1
    for (_, trial), own in zip(found, ((16, 16), (8, 16), (16, 8)), strict=True):
        kernels = [leaf.shape for leaf in trial.state.trainable if len(leaf.shape) == 2]
        assert [shape[1] for shape in kernels[:2]] == list(own)


def pairs(names: str, *values: tuple[int, int]) -> list[dict[str, Any]]:
    return [dict(zip(names.split(), pair, strict=True)) for pair in values]


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["layer", "group"])
def test_a_mean_over_a_width_is_not_explained_by_another_width(
    norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The norm divides by 4 u, which v is in the first trial and in the family's own models."""

    def build(hp: Any) -> Any:
        u, v = hp.Int("u", 4, 16, step=4), hp.Int("v", 16, 64, step=16)
        made = {
            "layer": lambda: layers.LayerNormalization(axis=(1, 2)),
            "group": lambda: layers.GroupNormalization(groups=1),
        }[norm]()
        parts = [layers.Dense(u), made, layers.GlobalAveragePooling1D(), layers.Dense(v, "relu")]
        return stack((4, 3), *parts)

    assert compare(build, pairs("u v", (16, 64), (16, 48), (8, 64), (8, 32)), monkeypatch) == 0


@pytest.mark.slow
def test_a_penalty_that_counts_pairs_is_not_explained_by_another_width(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build(hp: Any) -> Any:
        penalty = keras.regularizers.OrthogonalRegularizer(mode="columns")
        first = layers.Dense(hp.Int("u", 3, 4), kernel_regularizer=penalty)
        return stack((10,), first, layers.Dense(hp.Int("v", 6, 12, step=6)))

    assert compare(build, pairs("u v", (4, 12), (3, 12), (4, 6)), monkeypatch) == 0


@pytest.mark.slow
def test_a_bound_of_an_activation_is_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """6 is another operation than 4 and 9 are."""

    def build(hp: Any) -> Any:
        first = layers.Dense(hp.Int("u", 4, 32, step=4))
        return stack((10,), first, layers.ReLU(max_value=hp.Int("cap", 2, 10)))

    trials = pairs("u cap", (8, 4), (12, 9), (16, 6), (24, 4), (20, 9))
    assert compare(build, trials, monkeypatch) == 1


@pytest.mark.slow
def test_an_order_that_follows_from_widths_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three arrays ``einsum`` contracts two first: which, their extents decide."""

    def build(hp: Any) -> Any:
        u, v = hp.Int("u", 4, 32, step=4), hp.Int("v", 8, 48, step=8)
        x = keras.Input((6, 5))
        sides = [layers.Dense(u)(x), layers.Dense(v)(x), layers.Reshape((u, v))]
        middle = sides[2](layers.Dense(u * v)(layers.Flatten()(x)))
        y = keras.ops.einsum("bpu,buv,bqv->bpq", sides[0], middle, sides[1])
        made = keras.Model(x, layers.Dense(CLASSES, "softmax")(layers.Flatten()(y)))
        made.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return made

    trials = pairs("u v", (28, 16), (12, 24), (24, 16))
    assert compare(build, trials, monkeypatch) == 0


@pytest.mark.slow
def test_what_was_decided_before_a_family_came_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family of another choice has the variant of trials of which it was decided otherwise."""

    def build(hp: Any) -> Any:
        u, by = hp.Int("u", 4, 32, step=4), hp.Choice("by", ["relu", "tanh"])
        v = hp.Int("v", 4, 32, step=4)
        if by == "tanh":
            hp.Int("bits", 1, 3)
        return stack((10,), layers.Dense(u, "relu"), layers.Dense(v, by))

    relu, tanh = {"by": "relu"}, {"by": "tanh", "bits": 1}
    widths = pairs("u v", (8, 8), (12, 12), (16, 12), (20, 8))
    trials = [each | by for each, by in zip(widths, (relu, tanh, relu, relu), strict=True)]
    made = jobs

    def long_first(*arguments: Any) -> list[Job]:
        found = made(*arguments)
        for job in found:
            assert job.widths is not None
            epochs = 10**9 if job is found[0] else 2
            job.widths = replace(job.widths, always=False, epochs=epochs)
        return found

    monkeypatch.setitem(globals(), "jobs", long_first)
    padded: list[bool] = []
    compare(build, trials, monkeypatch, padded)
    assert padded == [False, True, False, False]
