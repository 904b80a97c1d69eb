"""Scripts for Keras 2: the error names what Keras 3 changed, and the guide has the same table."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import paceline
import paceline.compat.keras_tuner as kt
import toys
from commands import command
from paceline.compat import talos
from paceline.errors import _KERAS_3, keras_3_change, with_keras_3

X, Y = toys.data()
GUIDE = Path(__file__).parents[2] / "docs" / "migrate" / "keras_2.md"


def imports(line: str) -> Callable[[], object]:
    return lambda: exec(line, {})


def raises(error: Exception) -> Callable[[], object]:
    """Of TensorFlow, which is not installed here."""

    def way() -> None:
        raise error

    return way


def fitted(**arguments: Any) -> Any:
    return toys.softmax().fit(X, Y, verbose=0, **arguments)


WAYS: list[tuple[Callable[[], object], str]] = [
    (lambda: keras.optimizers.Adam(lr=0.1), "calls `lr` of optimizers `learning_rate`"),
    (lambda: toys.softmax().optimizer.lr, "calls `lr` of optimizers `learning_rate`"),
    (lambda: keras.optimizers.legacy.Adam(0.1), "has no `keras.optimizers.legacy`"),
    (imports("import keras.wrappers.scikit_learn"), "has `keras.wrappers.SKLearnClassifier`"),
    (imports("from keras.utils import np_utils"), "has `keras.utils.to_categorical`"),
    (imports("from keras.layers.core import Dense"), "imports every layer from `keras.layers`"),
    (imports("import keras.engine.topology"), "imports every layer from `keras.layers`"),
    (imports("from keras.layers import CuDNNLSTM"), "has `LSTM` and `GRU`"),
    (imports("import keras.preprocessing.text"), "has the layer `TextVectorization` in place"),
    (imports("from keras import objectives"), "has no such name. The guide From Keras 2"),
    (lambda: fitted(use_multiprocessing=True), "takes `workers`, `use_multiprocessing` and"),
    (lambda: fitted(nb_epoch=2), "calls `nb_epoch` `epochs`"),
    (lambda: toys.softmax().fit_generator(1), "has `fit`, `evaluate` and `predict` for generators"),
    (lambda: toys.softmax().predict_classes(X), "has only `model.predict`"),
    (lambda: fitted().history["val_acc"], "names a metric as `compile` does"),
    (lambda: keras.layers.Dense(3, init="normal"), "has other names for it: `init` is"),
    (lambda: keras.layers.Dense(output_dim=3), "calls `output_dim` of `Dense` `units`"),
    (lambda: keras.models.Model(input=1, output=2), "calls them `inputs` and `outputs`"),
    (lambda: toys.softmax().output, "has `inputs[0]` and `outputs[0]` in place"),
    (lambda: keras.callbacks.ModelCheckpoint("a.hdf5"), "saves models as `.keras`"),
    (lambda: keras.backend.set_value(1, 2), "has `keras.ops` in place of"),
    (lambda: fitted(samples_per_epoch=60), "counts batches: use `steps_per_epoch`"),
    (lambda: keras.layers.Dropout(p=0.5), "calls `p` of `Dropout` `rate`"),
    (lambda: keras.layers.LSTM(2, batch_input_shape=(1, 2, 3)), "has `keras.Input(batch_shape"),
    (
        raises(ModuleNotFoundError("No module named 'tensorflow.python.keras'")),
        "is `keras`: import",
    ),
    (raises(AttributeError("module 'tensorflow' has no attribute 'Session'")), "runs without sess"),
]


@pytest.mark.parametrize(("way", "said"), WAYS, ids=[said for _, said in WAYS])
def test_what_keras_raises_is_known(way: Callable[[], object], said: str) -> None:
    with pytest.raises(Exception, match=r".") as caught:
        way()
    found = keras_3_change(f"{type(caught.value).__name__}: {caught.value}")
    assert found is not None and found.startswith(f"Keras 3 {said}")
    assert len(found) < 300


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: Shapes (32, 3) and (32, 4) are incompatible",
        "KeyError: 'learning_rate'",
        "TypeError: build() missing 1 required positional argument: 'hp'",
        "ModuleNotFoundError: No module named 'workers_of_mine'",
        "the accuracy of acc is low",
    ],
)
def test_other_errors_stay_as_they_are(text: str) -> None:
    assert with_keras_3(text) == text


def old_rate(hp: Any) -> keras.Model:
    model = toys.softmax()
    rate = hp.Float("rate", 1e-3, 1e-1)
    model.compile(keras.optimizers.Adam(lr=rate), "sparse_categorical_crossentropy")
    return model


RATE = re.escape("Argument(s) not recognized: {'lr'") + ".*Keras 3 calls `lr` of optimizers `learn"


def test_a_build_fails_with_the_change() -> None:
    with pytest.raises(paceline.BuildError, match=RATE):
        paceline.Tuner(old_rate, "val_loss", study="s").search(X, Y, n_trials=1)


def test_a_trial_fails_with_the_change() -> None:
    def build(hp: Any) -> keras.Model:
        return old_rate(hp) if hp.Choice("kind", ["new", "old"]) == "old" else toys.softmax()

    tuner = paceline.Tuner(build, "val_loss", study="s", sampler="grid", on_note=lambda text: None)
    tuner.search(X, Y, n_trials=2, epochs=1, validation_data=(X, Y))
    assert re.search(RATE, str(tuner.trial(1).error))


@pytest.mark.parametrize("name", ["workers", "use_multiprocessing", "max_queue_size"])
def test_an_argument_of_fit_that_is_gone_is_told(name: str) -> None:
    with pytest.raises(paceline.UsageError, match=f"'{name}'.*Keras 3 takes `workers`, "):
        paceline.Tuner(toys.dense, study="s").search(X, Y, n_trials=1, **{name: 1})


def test_an_objective_and_a_callback_are_told_of_the_name_of_the_metric() -> None:
    said = "Keras 3 names a metric as `compile` does"
    with pytest.raises(paceline.ObjectiveError, match=f"'?val_acc\"? is not a metric.*{said}"):
        paceline.Tuner(toys.dense, "val_acc", study="s").search(
            X, Y, n_trials=1, validation_data=(X, Y)
        )
    with pytest.raises(paceline.UsageError, match=f"monitors 'val_acc'.*{said}"):
        paceline.Tuner(toys.dense, "val_loss", study="s").search(
            X,
            Y,
            n_trials=1,
            validation_data=(X, Y),
            callbacks=keras.callbacks.EarlyStopping("val_acc"),
        )


def test_the_command_tells_it_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("old.py").write_text("from keras.wrappers.scikit_learn import KerasClassifier\n")
    assert command("search", "old.py", "--trials", "1") == 2
    assert "Keras 3 has `keras.wrappers.SKLearnClassifier`" in capsys.readouterr().err


def test_a_scan_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    def function(x_train: Any, y_train: Any, x_val: Any, y_val: Any, params: Any) -> Any:
        return keras.optimizers.Adam(lr=params["lr"])

    with pytest.raises(ValueError, match="not recognized") as caught:
        talos.Scan(X, Y, {"lr": [0.1]}, function, "old", disable_progress_bar=True)
    assert "Keras 3 calls `lr` of optimizers `learning_rate`." in caught.value.__notes__
    assert "Keras 3 calls `lr` of optimizers `learning_rate`." in capsys.readouterr().err


def test_a_tuner_of_keras_tuner_tells_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not recognized") as caught:
        kt.RandomSearch(old_rate, "val_loss", 1, directory=tmp_path)
    assert "Keras 3 calls `lr` of optimizers `learning_rate`." in caught.value.__notes__


def test_the_guide_has_each_change() -> None:
    text = " ".join(GUIDE.read_text(encoding="utf-8").split())
    for _, change in _KERAS_3:
        names = set(re.findall(r"`([\w.]+)", change))
        assert all(name in text for name in names), change
    assert np.all([len(change) < 220 for _, change in _KERAS_3])
