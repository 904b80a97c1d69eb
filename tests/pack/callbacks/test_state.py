"""What checkpoints hold of callbacks: attributes are kept, or the user is told their names."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import toys
from paceline.pack.callbacks.state import CallbackState, attributes_of, callback_state, resumed

Make = Callable[[], list[keras.callbacks.Callback]]


class Counter:
    """A user's object that can be called and has a state."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self) -> int:
        self.n += 1
        return self.n


class Holds(keras.callbacks.Callback):
    """Begins with these attributes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        vars(self).update(attributes)


class Teacher(keras.callbacks.Callback):
    """Makes Keras' objects when training begins, one of them late."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.teacher = keras.models.clone_model(self.model)
        self.mean, self.late = keras.metrics.Mean(), None


def begun(make: Make) -> list[Any]:
    model = toys.softmax()
    callbacks = keras.callbacks.CallbackList(make(), model=model, epochs=1, steps=1)
    callbacks.on_train_begin()
    return [each for each in callbacks.callbacks if type(each) is not keras.callbacks.History]


def through_checkpoint(
    make: Make, change: Callable[..., None]
) -> tuple[list[Any], list[list[str]]]:
    """New callbacks with the state of changed ones; and names that the user is told."""
    before = begun(make)
    begun_with, arrays = attributes_of(before), {}
    change(*before)
    facts = json.loads(json.dumps(callback_state(before, "c", arrays, begun_with)))
    after = begun(make)
    with resumed(after, CallbackState({"callbacks": facts}, arrays)):
        for each in after:
            each.on_train_begin()
    return after, [each["lost"] for each in facts]


def test_variables_of_keras_objects_are_kept_where_training_begins_with_them() -> None:
    def change(callback: Any) -> None:
        callback.teacher.set_weights([w + 1.0 for w in callback.teacher.get_weights()])
        callback.mean.update_state([1.0, 2.0])
        callback.late = keras.metrics.Mean()
        seen.extend(callback.teacher.get_weights())

    seen: list[Any] = []
    (after,), lost = through_checkpoint(lambda: [Teacher()], change)
    for ours, other in zip(after.teacher.get_weights(), seen, strict=True):
        np.testing.assert_array_equal(ours, other)
    assert float(after.mean.count) == 2.0 and float(after.mean.result()) == 1.5
    assert (lost, after.late) == ([["late"]], None)


def test_variables_in_a_list_are_kept_and_those_of_the_model_are_none_of_the_callbacks() -> None:
    class Keeps(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.own = [keras.Variable(0.0), keras.Variable([1.0, 2.0])]
            self.models, self.head = self.model.trainable_variables[0], self.model.layers[-1]

    def change(callback: Any) -> None:
        callback.own[1].assign([3.0, 4.0])
        callback.models.assign(callback.models + 1.0)

    (after,), lost = through_checkpoint(lambda: [Keeps()], change)
    assert after.own[1].numpy().tolist() == [3.0, 4.0]
    assert np.all(np.array(after.models) < 1.0), "the model's own are in the trial's state"
    assert lost == [[]]


def test_attributes_that_are_one_object_stay_one() -> None:
    def make() -> list[Any]:
        rows: list[Any] = []
        return [Holds(mine=rows, other=[]), Holds(read=rows, text="a", words="a")]

    (writes, reads), _ = through_checkpoint(make, lambda w, r: w.mine.append(1))
    assert reads.read is writes.mine and writes.mine == [1]
    assert writes.other is not writes.mine


def test_a_made_up_checkpoint_gives_no_path_as_one_object() -> None:
    after = [Holds(kept=["a"]), Holds(files=["out/1.csv"], n=[1])]
    facts = [{"class": "Holds", "attributes": {}, "same": {}}] * 2
    facts[0] = facts[0] | {"same": {"kept": [1, "files"], "late": [1, "n"]}}
    facts[1] = facts[1] | {"same": {"files": [0, "kept"]}}
    with resumed(after, CallbackState({"callbacks": facts}, {})):
        pass
    assert (after[0].kept, after[1].files) == (["a"], ["out/1.csv"])
    assert not hasattr(after[0], "late")


@pytest.mark.parametrize(("log", "mode"), [("loss", "auto"), ("x", "max")])
def test_a_best_model_may_be_saved_before_the_first_epoch_after_a_stop_ends(
    log: str, mode: Any, fresh_folder: Path
) -> None:
    """Keras chooses how to compare when an epoch ends, and knows a best value by then here."""

    def checkpoint() -> Any:
        made = keras.callbacks.ModelCheckpoint(
            "{epoch}-{batch}.weights.h5",
            log,
            save_best_only=True,
            save_weights_only=True,
            mode=mode,
            save_freq=2,
        )
        return [made]

    def epoch(callback: Any, number: int, values: list[float]) -> None:
        callback.on_epoch_begin(number)
        for batch, value in enumerate(values):
            callback.on_train_batch_end(batch, {log: value})
        callback.on_epoch_end(number, {log: values[-1]})

    (whole,) = begun(checkpoint)
    values = [0.5, 0.5, 0.5], [0.4, 0.6, 0.7], [0.6, 0.3, 0.2]
    epoch(whole, 0, values[0])
    (after,), _ = through_checkpoint(checkpoint, lambda callback: epoch(callback, 0, values[0]))
    written = []
    for each in (whole, after):
        for path in Path().glob("*.h5"):
            path.unlink()
        epoch(each, 1, values[1])
        epoch(each, 2, values[2])
        written.append(sorted(path.name for path in Path().glob("*.h5")))
    assert written[0] and written[1] == written[0]
    assert after.best == whole.best


def test_a_users_attributes_may_be_named_like_those_of_keras_callbacks() -> None:
    def change(callback: Any) -> None:
        callback._current_epoch, callback.writer, callback.csv_file = 3, "second", [2]

    given: Make = lambda: [Holds(_current_epoch=0, writer="first", csv_file=[1])]  # noqa: E731
    (after,), lost = through_checkpoint(given, change)
    assert (after._current_epoch, after.writer, after.csv_file) == (3, "second", [2])
    assert lost == [[]]


@pytest.mark.parametrize(
    ("value", "change", "told"),
    [
        (Counter(), lambda callback: callback.it(), True),
        ("warm/up", lambda callback: setattr(callback, "it", "main/part"), True),
        ("warm/up", lambda callback: None, False),
        (len, lambda callback: None, False),
        (functools.partial(len), lambda callback: None, False),
        (keras.losses.MeanSquaredError(), lambda callback: None, False),
        (keras.optimizers.schedules.CosineDecay(0.1, 10), lambda callback: None, False),
        (keras.layers.Flatten(), lambda callback: None, False),
    ],
)
def test_the_user_is_told_what_may_have_changed_and_is_lost(value, change, told) -> None:
    _, lost = through_checkpoint(lambda: [Holds(it=value)], change)
    assert lost == [["it"]] if told else lost == [[]]
