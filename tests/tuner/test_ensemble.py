"""One model of several trials."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from sklearn import datasets

import toys
from marks import slow_where
from paceline.data.arrays import ArrayData, prepare
from paceline.errors import UsageError
from paceline.study.ensemble_record import EnsembleRecord, read_ensemble, write_ensemble
from paceline.study.objectives import Objective
from paceline.tuner.after.ensemble import (
    EnsembleCandidate,
    Predictions,
    joined,
    make_ensemble,
    select,
    worth_of,
)

UP, DOWN = Objective("val_accuracy", "maximize"), Objective("val_loss", "minimize")


def scores(predictions: np.ndarray, y: np.ndarray) -> Any:
    return lambda some: float(np.mean((predictions[list(some)].mean(axis=0) - y) ** 2))


def test_greedy_selection_is_between_the_best_single_and_the_best_mixture() -> None:
    left = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        y = rng.normal(size=40)
        predictions = y + rng.normal(size=(4, 40)) * rng.uniform(0.2, 1.0, (4, 1))
        value = scores(predictions, y)
        chosen = select(4, value, DOWN, 5)
        assert 1 <= len(chosen) <= 5
        single = min(value([n]) for n in range(4))
        mixtures = itertools.chain.from_iterable(
            itertools.combinations_with_replacement(range(4), n) for n in range(1, 6)
        )
        best = min(map(value, mixtures))
        assert best - 1e-12 <= value(chosen) <= single + 1e-12  # sums in other orders
        if single > best:
            left.append((value(chosen) - best) / (single - best))
    # It is greedy, not exhaustive; of what the best mixture gains it misses 0.5 % on average.
    assert np.mean(left) < 0.02


def test_it_begins_with_the_best_and_keeps_it_where_no_mean_is_better() -> None:
    y = np.zeros(4)
    predictions = np.array([[1.0] * 4, [0.1] * 4, [3.0] * 4])
    assert select(3, scores(predictions, y), DOWN, 5) == [1]
    assert select(3, lambda some: -float(2 in some), UP, 3) == [0]
    assert select(2, lambda some: math.nan, UP, 3) == [0]


def test_rounding_of_the_same_mean_is_no_gain() -> None:
    y, predictions = np.zeros(1), np.array([[1.0], [5.0]])

    def value(some: Any) -> float:
        return scores(predictions, y)(some) - 1e-12 * len(some)

    assert select(2, value, DOWN, 5) == [0]


def data_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-6)
    return x[order].astype("float32"), y[order]


def build_for(x: np.ndarray, y: np.ndarray) -> Any:
    def build(hp: Any) -> keras.Model:
        model = keras.Sequential(
            [
                keras.Input(x.shape[1:]),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.Dense(int(y.max()) + 1, activation="softmax"),
            ]
        )
        return toys.compiled(model, hp.Float("lr", 1e-3, 1e-1, sampling="log"))

    return build


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "digits",
        pytest.param("wine", marks=pytest.mark.slow),
        pytest.param("breast_cancer", marks=pytest.mark.slow),
    ],
)
def test_an_ensemble_is_worth_what_its_note_says(make, notes, name: str) -> None:
    x, y = data_of(name)
    n = len(x) // 2
    held_out = x[n:], y[n:]
    tuner = make(build_for(x, y), objective="val_loss", keep_best=6, parallel_trials=8)
    tuner.search(x[:n], y[:n], validation_data=held_out, epochs=8, batch_size=16, n_trials=12)
    model = tuner.ensemble(5)
    found = re.fullmatch(
        r"ensemble of trials (.+): val_loss ([\d.]+), and ([\d.]+) of trial \d+ alone, on the "
        r"(\d+) examples .*",
        notes[-1],
    )
    assert found is not None
    # The same by hand: the mean of what its models predict, on the half that did not select.
    order = np.random.default_rng(0).permutation(len(held_out[0]))
    rows = np.sort(order[len(order) // 2 :])
    assert len(rows) == int(found[4])
    half = held_out[0][rows], held_out[1][rows]
    logs = model.evaluate(*half, verbose=0, return_dict=True)
    assert logs["loss"] == pytest.approx(float(found[2]), abs=1e-4)  # as it is printed
    parts = [part.split(" x ") for part in found[1].split(", ")]
    counts = {int(number): int(times[0]) if times else 1 for number, *times in parts}
    ranked = [trial.number for trial in tuner._require_study().trials.ranked[:6]]
    models = dict(zip(ranked, tuner.best_models(6), strict=True))
    mean = sum(n * models[t].predict(half[0], verbose=0) for t, n in counts.items())
    mean = mean / sum(counts.values())
    # 1e-5: the order of the sum of at most five numbers.
    np.testing.assert_allclose(model.predict(half[0], verbose=0), mean, rtol=1e-5, atol=1e-6)
    assert float(found[2]) <= 1.05 * float(found[3])  # the other half may differ a little
    assert sum(counts.values()) <= 5


def test_the_model_is_saved_and_loaded_as_others_are(make, notes) -> None:
    validation = toys.data(40, seed=1)
    tuner = make(keep_best=3)
    tuner.search(*toys.data(), **{**toys.CALL, "epochs": 2}, n_trials=4)
    model = tuner.ensemble(validation_data=validation)
    model.save("ensemble.keras")
    again = keras.models.load_model("ensemble.keras")
    np.testing.assert_array_equal(
        again.predict(validation[0], verbose=0), model.predict(validation[0], verbose=0)
    )
    assert set(again.evaluate(*validation, verbose=0, return_dict=True)) == {"accuracy", "loss"}


@pytest.mark.slow
def test_models_that_another_worker_has_kept_are_taken_too(make, notes) -> None:
    """Its folder is there after it has ended, or was killed: ``workers/TOKEN/``."""
    validation = toys.data(40, seed=1)
    tuner = make(keep_best=3)
    tuner.search(*toys.data(), **{**toys.CALL, "epochs": 2}, n_trials=4)
    expected = tuner.ensemble(3, validation_data=validation).get_weights()
    said, own = notes[-1], Path("runs/s/best")
    best, *others = tuner._require_study().trials.ranked[:3]
    theirs = Path("runs/s/workers/0123456789abcdef/best")
    theirs.mkdir(parents=True)
    manifest = json.loads((own / "manifest.json").read_text())
    for trial in others:
        entry = manifest[str(trial.number)]
        (own / entry["file"]).rename(theirs / entry["file"])
    (theirs / "manifest.json").write_text(
        json.dumps({str(trial.number): manifest.pop(str(trial.number)) for trial in others})
    )
    (own / "manifest.json").write_text(json.dumps(manifest))
    assert list(manifest) == [str(best.number)]
    again = make(keep_best=3).ensemble(3, validation_data=validation)
    assert notes[-1] == said
    for one, other in zip(again.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_the_report_has_what_the_note_says_of_the_last_ensemble(make, notes, tmp_path) -> None:
    tuner = make(keep_best=3)
    tuner.search(*toys.data(), **{**toys.CALL, "epochs": 2}, n_trials=4)
    assert 'id="ensemble"' not in tuner.report(tmp_path / "before.html").read_text("utf-8")
    for k in (1, 3):
        tuner.ensemble(k, validation_data=toys.data(40, seed=1))
    found = re.match(r"ensemble of trials (.+): (\S+) ([\d.]+), and ([\d.]+) of trial", notes[-1])
    assert found is not None
    told = tuner.report(tmp_path / "after.html").read_text("utf-8").partition('id="ensemble"')[2]
    rows = [
        re.sub(r"<[^>]+>", " ", row).split() for row in told.partition("</table>")[0].split("<tr")
    ]
    assert [row[-1] for row in rows[1:]] == [found[2], found[3], found[4]]
    assert f"the ensemble of trials {found[1]}" in told
    assert "Measured on 20 examples" in told


@pytest.mark.parametrize("held", [b"", b"[1]", b'{"trials": [], "objective": "a"}', b"[" * 10_000])
def test_a_file_that_tells_of_no_ensemble_tells_of_none(tmp_path, held: bytes) -> None:
    assert read_ensemble(tmp_path) is None
    (tmp_path / "ensemble.json").write_bytes(held)
    assert read_ensemble(tmp_path) is None


def test_values_that_are_no_numbers_are_kept(tmp_path) -> None:
    record = EnsembleRecord([3, 1, 3], "val_loss", "nan", 0.5, 20)
    write_ensemble(tmp_path, record)
    assert read_ensemble(tmp_path) == record
    assert "trials 3 x 2, 1: val_loss nan, and 0.5000 of trial 3 alone" in worth_of(record)


def two_ends(hp: Any) -> keras.Model:
    inputs = {"a": keras.Input((6,), name="a"), "b": keras.Input((6,), name="b")}
    hidden = keras.layers.Concatenate()([inputs["a"], inputs["b"]])
    outputs = {
        "class": keras.layers.Dense(3, activation="softmax", name="class")(hidden),
        "sum": keras.layers.Dense(1, name="sum")(hidden),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-1)),
        loss={"class": "sparse_categorical_crossentropy", "sum": "mse"},
        metrics={"class": ["accuracy"]},
    )
    return model


@pytest.mark.slow
def test_models_of_several_inputs_and_outputs(make, notes) -> None:
    x, y = toys.data()
    inputs, targets = {"a": x, "b": -x}, {"class": y, "sum": x.sum(axis=1)}
    tuner = make(two_ends, objective="val_loss", keep_best=3)
    call = {"validation_data": (inputs, targets), "epochs": 2, "batch_size": 16}
    tuner.search(inputs, targets, n_trials=4, **call)
    model = tuner.ensemble(3)
    assert set(model.predict(inputs, verbose=0)) == {"class", "sum"}
    logs = model.evaluate(inputs, targets, verbose=0, return_dict=True)
    assert math.isfinite(logs["loss"]) and "class_accuracy" in logs


def tokens() -> ArrayData:
    """Sequences of 2 to 6 tokens, then zeros that are padding, and a class of each token."""
    rng = np.random.default_rng(0)
    x = rng.integers(1, 20, (64, 8))
    x[np.arange(8) >= rng.integers(2, 7, (64, 1))] = 0
    return prepare(x, x % 5)


def one_hot() -> ArrayData:
    x, y = toys.data(64)
    return prepare(x, keras.utils.to_categorical(y, toys.CLASSES))


def tagger(*, masked: bool = True) -> keras.Model:
    layers = [
        keras.Input((8,)),
        keras.layers.Embedding(20, 4, mask_zero=masked),
        keras.layers.Dense(5, activation="softmax"),
    ]
    model = toys.compiled(keras.Sequential(layers))
    model.optimizer.build(model.trainable_variables)  # as in a model of a trial
    return model


class AddsLoss(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x


def classifier(dtype: str = "float32", **arguments: Any) -> keras.Model:
    """Two layers of a dtype policy, the first with these arguments."""
    layers = [
        keras.Input((toys.FEATURES,)),
        keras.layers.Dense(8, activation="relu", dtype=dtype, **arguments),
        keras.layers.Dense(toys.CLASSES, activation="softmax", dtype=dtype),
    ]
    model = keras.Sequential(layers)
    model.compile(
        loss="categorical_crossentropy", metrics=["accuracy", keras.metrics.F1Score(threshold=0.4)]
    )
    model.optimizer.build(model.trainable_variables)  # as in a model of a trial
    return model


L2 = keras.regularizers.L2(0.05)


def with_l2() -> keras.Model:
    return classifier(kernel_regularizer=L2)


CASES = {
    "masks": (tagger, tokens, "loss"),
    "l2": (with_l2, one_hot, "loss"),
    "activity": (lambda: classifier(activity_regularizer="l1"), one_hot, "loss"),
    "bfloat16": (lambda: classifier("mixed_bfloat16"), one_hot, "loss"),
    "mean-of-array": (classifier, one_hot, "f1_score"),
    "one-of-array": (classifier, one_hot, "f1_score_1"),
}


def evaluated(model: keras.Model, inputs: Any, name: str) -> float:
    logs = model.evaluate(*inputs, verbose=0, return_dict=True)
    if name == "f1_score_1":
        return float(logs["f1_score"][1])
    return float(np.mean(logs[name]))


@pytest.mark.parametrize(
    "case", slow_where(CASES, lambda case: case not in ("masks", "one-of-array"))
)
def test_a_mean_is_judged_as_its_model_is_evaluated(case) -> None:
    build, data, name = CASES[case]
    keras.utils.set_random_seed(0)
    parts = [EnsembleCandidate(number, build()) for number in range(2)]
    # Two steps, where they count differently; one elsewhere.
    examples = data() if case == "masks" else data().slice(0, 32)
    alone = evaluated(parts[1].model, examples.inputs, name)
    predictions = Predictions(parts, examples, name)
    # 1e-4: XLA keeps digits within a model that its predictions in bfloat16 lack; 2e-5 measured.
    assert predictions.value([1]) == pytest.approx(alone, rel=1e-4)
    some = [0, 1, 1]
    model = joined([parts[position] for position in some])
    value = evaluated(model, examples.inputs, name)
    assert predictions.value(some) == pytest.approx(value, rel=1e-4)
    model.save("ensemble.keras")
    again = keras.models.load_model("ensemble.keras")
    assert evaluated(again, examples.inputs, name) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(
    "case", slow_where(["masks", "l2", "one-of-array"], lambda case: case != "l2")
)
def test_the_record_has_what_evaluate_measures(case) -> None:
    build, data, name = CASES[case]
    keras.utils.set_random_seed(2)
    models, examples = [(number, build()) for number in range(3)], data()
    rows = np.sort(np.random.default_rng(0).permutation(64)[32:])
    half = [array[rows] for array in examples.inputs]
    singles = [evaluated(model, half, name) for _, model in models]
    objective = DOWN if name == "loss" else Objective(f"val_{name}", "maximize")
    model, record = make_ensemble(models, examples, objective, 3, 0)
    assert case == "masks" or len(set(record.trials)) > 1
    # 1e-6: one program computes what two have computed.
    assert record.value == pytest.approx(evaluated(model, half, name), rel=1e-6)
    assert record.alone == pytest.approx(singles[record.trials[0]], rel=1e-6)


def test_penalties_of_an_ensemble_are_the_mean_of_those_of_its_models() -> None:
    parts = [EnsembleCandidate(number, with_l2()) for number in range(2)]
    first, second = (float(sum(part.model.losses)) for part in parts)
    model = joined([parts[0], parts[1], parts[1]])
    assert float(sum(model.losses)) == pytest.approx((first + 2 * second) / 3, rel=1e-6)
    assert float(L2.l2) == pytest.approx(0.05)  # the user's object is as it was


def adding_model() -> keras.Model:
    layers = [keras.Input((toys.FEATURES,)), AddsLoss(), keras.layers.Dense(toys.CLASSES)]
    model = keras.Sequential([*layers, keras.layers.Softmax()])
    model.compile(loss="categorical_crossentropy", metrics=["accuracy"])
    return model


def test_penalties_that_have_no_mean_are_refused_where_the_loss_selects() -> None:
    models = [(number, adding_model()) for number in (7, 8)]
    with pytest.raises(UsageError, match=r"trial 7 adds to its loss \(add_loss"):
        make_ensemble(models, one_hot(), DOWN, 2, 0)
    assert make_ensemble(models, one_hot(), UP, 2, 0)[1].objective == "val_accuracy"


def test_a_step_counts_where_not_all_models_mask_it() -> None:
    keras.utils.set_random_seed(0)
    parts = [EnsembleCandidate(0, tagger()), EnsembleCandidate(1, tagger(masked=False))]
    examples = tokens().slice(0, 32)
    judged = Predictions(parts, examples, "loss").value([0, 1])
    assert judged == pytest.approx(evaluated(joined(parts), examples.inputs, "loss"), rel=1e-5)


class Custom(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(3, activation="softmax")

    def call(self, x: Any) -> Any:
        return self.dense(x)


def test_what_cannot_be_an_ensemble_says_why(make) -> None:
    call = {**toys.CALL, "epochs": 1, "n_trials": 2}
    x, y = toys.data()
    tuner = make(study="one")
    tuner.search(x, y, **call)
    with pytest.raises(UsageError, match=r"1 model is kept.*Tuner\(keep_best=10\)"):
        tuner.ensemble()
    with pytest.raises(UsageError, match="k must be .* got 0"):
        tuner.ensemble(0)
    again = make(study="one", keep_best=2)
    with pytest.raises(UsageError, match="Pass validation_data"):
        again.ensemble()
    with pytest.raises(UsageError, match="validation_data must be"):
        again.ensemble(validation_data=x)
    custom = make(
        lambda hp: toys.compiled(Custom(), hp.Float("lr", 0.01, 0.1)), study="two", keep_best=2
    )
    custom.search(x, y, **call)
    with pytest.raises(UsageError, match="the model of trial . is a Custom, but only Functional"):
        custom.ensemble()
    trained = make(study="three", keep_best=2, objective="loss")
    trained.search(x, y, **call)
    with pytest.raises(UsageError, match="the objective 'loss' is not measured on validation data"):
        trained.ensemble()
    assert not Path("ensemble.keras").exists()


@pytest.mark.slow
def test_models_that_were_not_judged_by_the_same_examples_need_some(make) -> None:
    """Those of folds were trained on each other's, and data by hp differ from trial to trial."""
    x, y = toys.data()
    folds = make(keep_best=2, study="folds")
    folds.search(x, y, folds=2, n_trials=2, epochs=1)
    with pytest.raises(UsageError, match="with folds, each model was trained on validation data"):
        folds.ensemble(2)
    by_hp = make(keep_best=2, study="by-hp")

    def scaled(hp: Any) -> Any:
        return x * np.float32(hp.Choice("scale", [1.0, 0.5]))

    by_hp.search(
        scaled, y, validation_data=lambda hp: (scaled(hp)[:20], y[:20]), n_trials=2, epochs=1
    )
    with pytest.raises(UsageError, match="the same for all trials"):
        by_hp.ensemble(2)
    assert by_hp.ensemble(2, validation_data=(x[:20], y[:20])) is not None


@pytest.mark.parametrize(("masked", "step"), [(True, None), (False, 256)])
def test_steps_are_larger_where_that_changes_no_value(masked, step) -> None:
    keras.utils.set_random_seed(0)
    part = EnsembleCandidate(0, tagger(masked=masked))
    assert Predictions([part], tokens(), "loss")._step == step
