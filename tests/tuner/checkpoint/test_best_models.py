"""Which weights are kept, and what is written of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import toys
from marks import slow_where
from paceline.study.trials.trial import Trial
from paceline.tuner.checkpoint.best_models import BestModels, find_saved
from paceline.tuner.checkpoint.trial_variables import MANIFEST, apply_weights


class Model:
    """A model whose file is a number."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def save(self, path: Path) -> None:
        path.write_text(str(self.weight))


def rebuild(number: int, weights: Any) -> Model:
    return Model(weights[0][0])


def weigh(value: float) -> Any:
    return lambda: ([np.float32(value)], [])


def never() -> Any:
    pytest.fail("weights were fetched that are not kept")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "best"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_best_complete_trial_is_kept(folder):
    best = BestModels(folder, 1, "maximize")
    for number, value in enumerate((0.5, 0.9, 0.7)):
        best.offer(number, 1, value, weigh(value) if value != 0.7 else never)
        best.complete(number)
    assert best.weights(1) == ([np.float32(0.9)], [])
    assert best.weights(0) is None
    assert not folder.exists()
    best.save(rebuild)
    assert names(folder) == [MANIFEST, "trial-1-epoch-1.keras"]
    assert best.weights_path(1) == folder / "trial-1-epoch-1.keras"


def test_a_running_trial_takes_no_place_of_a_complete_one(folder):
    best = BestModels(folder, 1, "minimize")
    best.offer(0, 1, 0.5, weigh(0.5))
    best.complete(0)
    best.offer(1, 1, 0.1, weigh(0.1))
    assert best.weights(0) is not None
    assert best.weights(1) == ([np.float32(0.1)], [])
    best.save(rebuild)
    assert names(folder) == [MANIFEST, "trial-1-epoch-1.keras"]
    best.forget(1)  # it failed later
    best.save(rebuild)
    assert names(folder) == [MANIFEST, "trial-0-epoch-1.keras"]


def test_weights_are_those_of_the_best_epoch(folder):
    best = BestModels(folder, 1, "maximize")
    best.offer(0, 1, 0.5, weigh(0.5))
    best.offer(0, 3, 0.6, weigh(0.6))
    best.complete(0)
    best.save(rebuild)
    assert names(folder) == [MANIFEST, "trial-0-epoch-3.keras"]


@pytest.mark.parametrize("first", [3, 5])
def test_of_equals_the_earlier_trial_is_kept_whichever_ends_first(folder, first):
    best = BestModels(folder, 1, "maximize")
    for number in (first, 8 - first):
        best.offer(number, 1, 0.9, weigh(number))
        best.complete(number)
    assert best.weights(3) is not None
    assert best.weights(5) is None


def test_several_are_kept_and_the_worst_makes_room(folder):
    best = BestModels(folder, 2, "minimize")
    for number, value in enumerate((3.0, 2.0, 1.0)):
        best.offer(number, 1, value, weigh(value))
        best.complete(number)
    best.save(rebuild)
    assert names(folder) == [MANIFEST, "trial-1-epoch-1.keras", "trial-2-epoch-1.keras"]


def test_a_later_session_goes_on(folder):
    best = BestModels(folder, 1, "maximize")
    best.offer(0, 2, 0.5, weigh(0.5))
    best.complete(0)
    best.save(rebuild)
    later = BestModels(folder, 1, "maximize")
    assert later.weights_path(0) == folder / "trial-0-epoch-2.keras"
    later.offer(1, 1, 0.4, never)
    later.complete(1)
    later.save(lambda number, weights: pytest.fail("it is on disk already"))
    later.offer(2, 1, 0.6, weigh(0.6))
    later.complete(2)
    later.save(rebuild)
    assert names(folder) == [MANIFEST, "trial-2-epoch-1.keras"]


def test_models_of_another_study_take_nobodys_place(folder):
    """The storage was removed or cut, and began anew beside the models of what it held."""
    before = BestModels(folder, 1, "maximize")
    before.offer(0, 2, 0.9, weigh(0.9))
    before.complete(0)
    before.save(rebuild)
    assert find_saved(folder.parent, "", 0, 0.9) == folder / "trial-0-epoch-2.keras"
    assert find_saved(folder.parent, "", 0, 0.5) is None
    now = BestModels(folder, 1, "maximize")
    now.expect([Trial(0, "complete", 0.9)])
    assert now.weights_path(0) is not None
    now.expect([Trial(0, "complete", 0.5)])
    assert now.weights_path(0) is None
    now.offer(0, 1, 0.5, weigh(0.5))
    now.complete(0)
    now.save(rebuild)
    assert names(folder) == [MANIFEST, "trial-0-epoch-1.keras"]
    assert find_saved(folder.parent, "", 0, 0.5) == folder / "trial-0-epoch-1.keras"


def test_models_of_trials_under_way_are_those_of_a_search_that_goes_on(folder):
    """A saved model of an epoch that will come again is not kept for it."""
    before = BestModels(folder, 2, "maximize")
    for number, value in ((0, 0.9), (1, 0.8)):
        before.offer(number, 2, value, weigh(value))
    before.save(rebuild)
    now = BestModels(folder, 2, "maximize")
    now.expect([Trial(0, "running", 0.9), Trial(1, "paused", 0.7)])
    assert now.weights_path(0) == folder / "trial-0-epoch-2.keras"
    assert now.weights_path(1) is None
    now.forget(0)  # its process ended, and another trial takes its place
    now.offer(1, 1, 0.7, weigh(0.7))
    now.save(rebuild)
    assert names(folder) == [MANIFEST, "trial-1-epoch-1.keras"]


def test_a_model_of_another_study_of_the_same_value_is_not_taken(folder):
    """Accuracies tie easily, and so do numbers and epochs."""

    def save(study: str, weight: float) -> BestModels:
        best = BestModels(folder, 1, "maximize", study=lambda: study)
        best.expect([Trial(0, "complete", 1.0)])
        best.offer(0, 1, 1.0, weigh(weight))
        best.complete(0)
        best.save(rebuild)
        return best

    save("", 1.0)  # by a version that knew no ids
    for study, weight in (("a", 2.0), ("b", 3.0)):
        assert BestModels(folder, 1, "maximize", study=study.strip).weights_path(0) is None
        assert save(study, weight).weights_path(0) == folder / "trial-0-epoch-1.keras"
        assert (folder / "trial-0-epoch-1.keras").read_text() == str(weight)
    assert find_saved(folder.parent, "a", 0, 1.0) is None
    assert find_saved(folder.parent, "b", 0, 1.0) is not None


def test_a_changed_file_is_not_used(folder):
    best = BestModels(folder, 1, "maximize")
    best.offer(0, 1, 0.5, weigh(0.5))
    best.complete(0)
    best.save(rebuild)
    (folder / "trial-0-epoch-1.keras").write_text("something else")
    assert BestModels(folder, 1, "maximize").weights_path(0) is None


def test_a_manifest_points_to_nothing_outside(folder, tmp_path):
    folder.mkdir()
    (tmp_path / "x.keras").write_text("secret")
    good = {"file": "a.keras", "epoch": 1, "value": 0.5, "sha256": "0"}
    bad = [
        {"file": "../x.keras"},
        {"file": "x.pickle"},
        {"value": "nan"},
        {"epoch": None},
        {"sha256": 3},
    ]
    entries = {str(i): good | change for i, change in enumerate(bad)} | {"9": 3}
    (folder / MANIFEST).write_text(json.dumps(entries))
    best = BestModels(folder, 1, "maximize")
    assert [best.weights_path(number) for number in (0, 1, 2, 3, 4, 9)] == [None] * 6
    best.offer(7, 1, 0.1, weigh(0.1))  # nothing of it counts
    best.complete(7)
    assert best.weights(7) is not None


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a": 1}'])
def test_a_damaged_manifest_is_none(folder, text):
    folder.mkdir()
    (folder / MANIFEST).write_text(text)
    assert BestModels(folder, 1, "maximize").weights_path(0) is None


def test_a_model_that_cannot_be_saved_whole_leaves_its_weights(folder):
    class Odd(Model):
        def save(self, path):
            raise NotImplementedError("no get_config")

        def save_weights(self, path):
            path.write_text("weights")

    notes: list[str] = []
    best = BestModels(folder, 1, "maximize")
    best.offer(4, 2, 0.5, weigh(0.5))
    best.complete(4)
    best.save(lambda number, weights: Odd(1.0), notes.append)
    assert names(folder) == [MANIFEST, "trial-4-epoch-2.weights.h5"]
    assert best.weights_path(4) == folder / "trial-4-epoch-2.weights.h5"
    assert "only the weights of trial 4 are saved" in notes[0]


def test_a_model_that_cannot_be_built_again_hides_no_other(folder):
    def fails(number, weights):
        if number == 0:
            raise MemoryError("no room")
        return rebuild(number, weights)

    notes: list[str] = []
    best = BestModels(folder, 2, "maximize")
    for number in (0, 1):
        best.offer(number, 1, 0.5, weigh(0.5))
        best.complete(number)
    best.save(fails, notes.append)
    assert names(folder) == [MANIFEST, "trial-1-epoch-1.keras"]
    assert "trial 0 cannot be saved: build(hp) failed this time: MemoryError" in notes[0]


def test_weights_of_another_model_are_refused():
    class Built:
        trainable_variables: list[Any] = []  # noqa: RUF012
        non_trainable_variables: list[Any] = []  # noqa: RUF012

    with pytest.raises(ValueError, match="argument 2 is longer"):
        apply_weights(Built(), ([np.zeros(1)], []))


def without_input(hp: Any) -> keras.Model:
    """A model that is made from the data, of three features or six."""
    hp.Choice("features", [3, 6])
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3, activation="softmax")]
    return toys.compiled(keras.Sequential(layers), hp.Float("lr", 1e-2, 1e-1))


@pytest.mark.parametrize("features", slow_where([3, 6], lambda features: features == 3))
def test_the_features_of_a_model_without_an_input_may_depend_on_hp(make, notes, features) -> None:
    """The study knows the shapes of its first build alone."""
    x, y = toys.data()
    there = toys.data(23, seed=1)

    def chosen(array: np.ndarray) -> Any:
        return lambda hp: array[:, : hp.Choice("features", [3, 6])]

    def validation(hp: Any) -> Any:
        return chosen(there[0])(hp), there[1]

    tuner = make(without_input, objective="min:val_loss", plan="sequential")
    tuner.enqueue({"features": features})
    tuner.search(chosen(x), y, validation_data=validation, epochs=2, n_trials=1, batch_size=16)
    for each in (tuner, make(without_input, objective="min:val_loss")):
        score = each.best_model().evaluate(there[0][:, :features], there[1], verbose=0)
        assert score[0] == pytest.approx(tuner.best_trial.value, abs=1e-6)
    assert not any("cannot be saved" in note for note in notes)
    assert (tuner.best_trial.batch is None) == (features == 3)
