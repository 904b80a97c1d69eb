"""Bad input: a clear error before anything is trained, and nothing is written."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import optuna
import pytest
from keras import callbacks

import paceline
import toys

X, Y = toys.data()
CALL: dict[str, Any] = {"epochs": 1, "n_trials": 2, "validation_split": 0.2}


@pytest.fixture(autouse=True)
def nothing_written(request, fresh_folder):
    """No file below the working folder, but for what a test says it makes."""
    before = set(fresh_folder.rglob("*"))
    yield
    if "study" not in request.fixturenames:
        assert set(fresh_folder.rglob("*")) == before


@pytest.fixture(autouse=True)
def nothing_trained(request, monkeypatch):
    def never(*_: Any) -> None:
        pytest.fail("a trial was asked for")

    if "study" not in request.fixturenames:
        monkeypatch.setattr("paceline.tuner.search.loop.SearchLoop.run", never)


def tuner(build: Any = None, **arguments: Any) -> paceline.Tuner:
    settings: dict[str, Any] = {"sampler": "random", "on_note": lambda text: None}
    return paceline.Tuner(build or (lambda hp: toys.softmax()), **(settings | arguments))


TEXT = np.array(["a cat sat", "the dog ran"] * 25)


def nan_at(index: int) -> np.ndarray:
    x = X.copy()
    x[index, 2] = np.nan
    return x


# -- arguments of the tuner ------------------------------------------------------------------------


class Trains:
    """A HyperModel that trains by itself."""

    def build(self, hp):
        return toys.softmax()

    def fit(self, hp, model, **arguments):
        return model.fit(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"build": None}, "build must be a function .* got None"),
        ({"build": 3}, "build must be a function .* got 3"),
        ({"build": keras.Sequential()}, "build must be a function, got a keras.Model"),
        ({"build": Trains}, "build must be an object, got the class Trains"),
        ({"build": Trains()}, r"build: Trains has its own fit\(\)"),
        ({"pruner": "medain"}, "pruner: 'medain' is unknown. Use one of auto, none, median"),
        ({"executor": "rai"}, "executor must be one of auto, packed, fit, ray, got 'rai'"),
        ({"plan": "piled"}, "plan must be one of .* got 'piled'"),
        ({"mesh": "4x"}, "mesh must be .* got '4x'"),
        ({"parallel_trials": 0}, "parallel_trials must be a positive integer, got 0"),
        ({"parallel_trials": 2.5}, r"parallel_trials must be a positive integer, got 2\.5"),
        ({"parallel_trials": "many"}, "parallel_trials must be a positive integer, got 'many'"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"seed": "x"}, "seed must be an integer of at least 0, got 'x'"),
        ({"seed": 2**70}, "seed must be at most 4294967295, .* got 1180591620717411303424"),
        ({"keep_best": 0}, "keep_best must be a positive integer, got 0"),
    ],
)
def test_a_tuner_checks_its_arguments(arguments, message):
    with pytest.raises(paceline.UsageError, match=message):
        paceline.Tuner(**({"build": toys.dense} | arguments))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"study": ""}, paceline.StudyError, "name"),
        ({"study": "\u4e2d" * 128}, paceline.StudyError, "with 384. Pass a shorter name"),
        ({"storage": "nosuch://x"}, paceline.StorageError, "nosuch"),
        ({"storage": "sqlite:////proc/no/study.db"}, paceline.StorageError, "/proc/no"),
        ({"storage": "journal:/proc/no/study.log"}, paceline.StorageError, "/proc/no"),
        ({"objective": "val_auc"}, paceline.ObjectiveError, "val_auc.*loss, accuracy, val_loss"),
    ],
)
def test_what_shows_at_the_search(arguments, error, message):
    with pytest.raises(error, match=message):
        tuner(**arguments).search(X, Y, **CALL)


# -- build -----------------------------------------------------------------------------------------


def uncompiled(hp):
    return keras.Sequential([keras.Input((toys.FEATURES,)), keras.layers.Dense(3)])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda hp: None, r"build\(hp\) must return a keras.Model, got NoneType. .*'return model'"),
        (uncompiled, r"returned a model that is not compiled. Call model\.compile"),
        (lambda: None, r"build\(hp\) failed: TypeError: .* 0 positional arguments but 1 was given"),
        (lambda hp: hp.no_such, "AttributeError: .*no_such"),
    ],
)
def test_a_build_that_makes_no_compiled_model(build, message):
    with pytest.raises(paceline.BuildError, match=message):
        tuner(build).search(X, Y, **CALL)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda hp: hp.Int("units", 8, 4), "units.*8.*4"),
        (lambda hp: hp.Float("lr", 0.0, 1.0, sampling="log"), "lr.*log"),
        (lambda hp: [hp.Int("units", 1, 4), hp.Int("units", 1, 8)], "units"),
    ],
)
def test_a_space_that_cannot_be(declare, message):
    def build(hp):
        declare(hp)
        return toys.softmax()

    with pytest.raises(paceline.SpaceError, match=message):
        tuner(build).search(X, Y, **CALL)


def test_a_model_that_does_not_take_the_data():
    with pytest.raises(
        paceline.BuildError, match=r"does not accept the data: x has \(4,\) per example. .*expected"
    ) as caught:
        tuner().search(X[:, :4], Y, **CALL)
    assert "\x1b" not in str(caught.value) and "\n" not in str(caught.value)
    assert "x has (4,) per example. Use keras.Input((4,)), or leave it out. V" in str(caught.value)


def test_a_loss_of_another_backend_s_functions():
    K = types.SimpleNamespace(mean=np.asarray)  # as tensorflow.keras.backend, which is TensorFlow's

    def loss(y, p):
        return K.mean(p)

    def build(hp):
        model = toys.softmax()
        model.compile("sgd", loss)
        return model

    message = (
        r"does not train on JAX: line \d+ of .*test_bad_input\.py calls K\.mean, which a program "
        r"of JAX cannot hold\. Write keras\.ops\.mean instead\. Or set KERAS_BACKEND=tensorflow"
    )
    with pytest.raises(paceline.BuildError, match=message):
        tuner(build).search(X, Y, **CALL)


def test_no_validation_data_for_the_default_objective():
    with pytest.raises(
        paceline.ObjectiveError, match='needs validation data. .*objective="accuracy"'
    ):
        tuner().search(X, Y, epochs=1, n_trials=1)


def test_a_metric_of_the_users_needs_a_direction():
    def wobble(y, p):
        return keras.ops.mean(p)

    def build(hp):
        model = toys.softmax()
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=[wobble])
        return model

    with pytest.raises(paceline.ObjectiveError, match='Write "max:val_wobble" or "min:val_wobble"'):
        tuner(build).search(X, Y, **CALL)


# -- data ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"y": Y[:-1]}, "x has 50, y has 49"),
        ({"sample_weight": np.ones(3)}, "sample_weight has 3"),
        ({"x": X[:0], "y": Y[:0]}, "no examples"),
        ({"x": [], "y": []}, "no examples"),
        ({"x": nan_at(7)}, "x holds 1 values that are NaN .* example 7. .*allow_nan=True"),
        ({"x": np.full_like(X, np.inf)}, "x holds .* infinite"),
        ({"y": np.full(50, np.nan)}, "y holds 50 values"),
        ({"y": Y + 1}, "training data: labels go from 1 to 3, but the model has 3 classes, 0 to 2"),
        ({"y": Y - 1}, "labels go from -1 to 1"),
        ({"y": (Y + 1).astype("float32")}, "labels go from 1 to 3"),
        ({"validation_data": (X, Y + 1)}, "validation data: labels go from 1 to 3"),
        ({"validation_data": (X, Y[:-1])}, "validation data: all arrays .* same number"),
        ({"validation_data": (nan_at(0), Y)}, "validation data: x holds 1"),
        ({"validation_split": 1.0}, r"validation_split must be between 0 and 1, got 1\.0"),
        ({"validation_split": 0.99}, "leaves one part empty"),
        ({"class_weight": {0: 1.0}, "sample_weight": np.ones(50)}, "got both"),
        (
            {"class_weight": {"a": 1}},
            "class_weight must .* numbers from 0 .*got the class 'a'",
        ),
        ({"class_weight": {-1: 1}}, "class_weight must .* got the class -1"),
        ({"class_weight": {0: np.nan}}, "class_weight: the weight of class 0 must be a fin"),
        ({"class_weight": {0: "1"}}, "class_weight: the weight of class 0 must be .* got '1'"),
        (
            {"class_weight": [1.0, 2.0]},
            r"class_weight must be a dict .*Pass dict\(enumer",
        ),
        ({"class_weight": lambda hp: {"a": 1}}, "class_weight must be .* got the class 'a'"),
        ({"y": np.eye(3)[Y], "class_weight": {3: 2.0}}, "y has 3 columns, .* weight for class 3"),
        ({"y": None, "sample_weight": np.ones(50)}, "sample_weight needs targets"),
        ({"sample_weight": np.ones(50, "complex64")}, "sample_weight must hold real numbers"),
        ({"sample_weight": ["a"] * 50}, "sample_weight must hold numbers, got text such as 'a'"),
        ({"sample_weight": np.full(50, np.nan)}, "sample_weight holds 50 values that are NaN"),
        ({"x": X + 1j}, r"x must hold real numbers, .*np\.stack\(\[x\.real, x\.imag\], axis=-1\)"),
        ({"y": Y + 1j}, "training data: y must hold real numbers"),
        (
            {"validation_data": (X[:, :4], Y)},
            r"x has \(4,\) per example, for training \(6,\)",
        ),
        ({"validation_data": (X,)}, r"y has nothing per example, for training \(\). Pass \(x, y\)"),
        ({"validation_data": X}, r"validation_data: y has nothing per example, .*Pass \(x, y\)"),
        (
            {"validation_data": (X, np.eye(3)[Y])},
            r"y has \(3,\) .*\. Targets must have the same shape",
        ),
        (
            {"validation_data": (X, Y, np.ones((50, 7)))},
            r"sample_weight has \(7,\) .*not accept",
        ),
        (
            {"validation_data": "val.csv"},
            r"validation_data must .*'val\.csv'\. .*pd\.read_csv",
        ),
        ({"validation_data": Path("val.npz")}, r"the path 'val\.npz'\. .*np\.load\(path\)"),
        ({"validation_data": 3}, "validation_data must be .* got the int '3'"),
        (
            {"callbacks": callbacks.EarlyStopping("val_los")},
            "EarlyStopping monitors 'val_los', but",
        ),
        (
            {"callbacks": [callbacks.ReduceLROnPlateau("auc")]},
            "'auc', .* logs only loss, accuracy, val",
        ),
        (
            {"callbacks": lambda hp: callbacks.ModelCheckpoint("{epoch}-{val_f1:.2f}.keras")},
            "ModelCheckpoint monitors 'val_f1'",
        ),
        ({"x": 3.0}, "got type float|single number"),
        (
            {"x": TEXT},
            "training data: x must hold numbers, got text .*JAX trains on numb",
        ),
        (
            {"x": TEXT.tolist()},
            "x must hold .* text such as 'a cat sat', .*TfidfVectorizer",
        ),
        ({"validation_data": (TEXT, Y)}, "validation data: x must hold numbers, got text"),
        ({"validation_data": (X, Y, np.ones(3))}, "validation data: .*sample_weight has 3"),
    ],
)
@pytest.mark.parametrize("executor", ["auto", "fit"])
def test_data_that_cannot_be_trained_on(data, message, executor):
    with pytest.raises(paceline.PacelineError, match=message):
        tuner(executor=executor).search(**({"x": X, "y": Y} | CALL | data))


def test_a_callback_watches_validation_and_there_is_none():
    with pytest.raises(
        paceline.UsageError, match="EarlyStopping monitors 'val_loss', .* loss, acc"
    ):
        tuner(objective="accuracy").search(
            X, Y, epochs=1, n_trials=1, callbacks=callbacks.EarlyStopping()
        )


def test_the_first_batch_of_validation_data_that_only_fit_reads():
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return X[:10, :4], Y[:10]

    call = CALL | {"validation_split": 0.0, "validation_data": Batches()}
    with pytest.raises(paceline.DataError, match=r"validation_data: x has \(4,\) per example"):
        tuner(executor="fit").search(X, Y, **call)


def test_labels_of_one_output_of_several():
    def build(hp):
        inputs = keras.Input((toys.FEATURES,))
        outputs = {
            "kind": keras.layers.Dense(3, activation="softmax", name="kind")(inputs),
            "size": keras.layers.Dense(1, name="size")(inputs),
        }
        model = keras.Model(inputs, outputs)
        losses = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
        model.compile("adam", losses, metrics={"kind": ["accuracy"]})
        return model

    with pytest.raises(paceline.DataError, match="labels of output 'kind' go from 2 to 4"):
        tuner(build).search(X, {"kind": Y + 2, "size": X[:, 0]}, **CALL)


@pytest.mark.parametrize(
    ("form", "weights", "message"),
    [
        ("dict", ["p"], "an array for each output, got a dict of 'p'. Add ones for 'q'"),
        (
            "list",
            ["p", "q"],
            r"be a list, .*\['p'\], sample_weight\['q'\]\]",
        ),
        ("one", ["p"], "be one array, .*got a dict of 'p'. Pass the array itself"),
    ],
)
def test_sample_weights_by_output(form, weights, message):
    def build(hp):
        inputs = keras.Input((toys.FEATURES,))
        outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in "pq"}
        made = {"dict": outputs, "list": [*outputs.values()], "one": outputs["p"]}[form]
        model = keras.Model(inputs, made)
        model.compile("adam", "mse")
        return model

    y = {"dict": {"p": X[:, 0], "q": X[:, 1]}, "list": [X[:, 0], X[:, 1]], "one": X[:, 0]}[form]
    with pytest.raises(paceline.DataError, match=f"sample_weight must .*{message}"):
        tuner(build).search(X, y, sample_weight=dict.fromkeys(weights, np.ones(50)), **CALL)


def test_labels_of_a_subclassed_model():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.out = keras.layers.Dense(3)

        def call(self, x):
            return self.out(x)

    def build(hp):
        model = Model()
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    with pytest.raises(paceline.DataError, match="labels go from 0 to 5"):
        tuner(build).search(X, np.arange(50) % 6, **CALL)


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_trials": 0}, "n_trials must be a positive integer, got 0"),
        ({"n_trials": -3}, "n_trials must be .* got -3"),
        ({"n_trials": "all"}, r"n_trials must be a number or '\+N', got 'all'"),
        ({"n_trials": None}, "n_trials is missing"),
        ({"epochs": 0}, "epochs must be a positive integer, got 0"),
        ({"epochs": None}, "epochs must be a positive integer, got None"),
        ({"epochs": lambda hp: 0}, "epochs must be a positive integer, got 0"),
        ({"batch_size": 0}, "batch_size must be .* got 0"),
        ({"batch_size": "32"}, "batch_size must be .* got '32'"),
        ({"batch_size": lambda hp: None}, "batch_size must be .* got None"),
        ({"validation_batch_size": 0}, "validation_batch_size must be .* got 0"),
        (
            {"validation_batch_size": lambda hp: 0},
            "validation_batch_size must be a positive integer, got 0",
        ),
        ({"steps_per_epoch": 0}, "steps_per_epoch must be a positive integer, got 0"),
        (
            {"steps_per_epoch": lambda hp: 1.5},
            r"steps_per_epoch must be a positive integer, got 1\.5",
        ),
        ({"validation_steps": -1}, "validation_steps must be a positive integer, got -1"),
        ({"initial_epoch": -1}, "initial_epoch must be an integer of at least 0, got -1"),
        ({"initial_epoch": 1}, "initial_epoch must be below epochs, .* got 1 and 1"),
        ({"validation_freq": 2}, "validation_freq=2 validates none of 1 epochs"),
        ({"validation_freq": []}, r"validation_freq=\[\] validates none"),
        ({"validation_freq": [0]}, "validation_freq must be a positive integer, got 0"),
        ({"x": object()}, "x must be arrays, .* a tf.data.Dataset.* got type object"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0, got 0"),
        ({"timeout": "30m"}, "timeout must be .* got '30m'"),
        ({"bach_size": 3}, "unknown argument 'bach_size'"),
        ({"max_trials": 3, "n_trials": None}, "unknown argument 'max_trials'. .* n_trials"),
        ({"workers": 3}, "unknown argument 'workers'"),
        ({"x": None}, "search: x is missing"),
        ({"validation_data": (None, None)}, "validation_data must be"),
    ],
)
def test_arguments_of_search(arguments, message):
    with pytest.raises(paceline.UsageError, match=message):
        tuner().search(**({"x": X, "y": Y} | CALL | arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"repeats": 0}, "repeats must be a positive integer, got 0"),
        ({"repeats": 2.5}, r"repeats must be a positive integer, got 2\.5"),
        ({"folds": 1}, "folds must be an integer of at least 2, got 1"),
        ({"folds": "five"}, "folds must be an integer of at least 2, got 'five'"),
        ({"folds": 51, "y": Y.astype("float32")}, "folds must be at most 50, .* got 51"),
        ({"folds": 30}, "folds: 30 folds, but class . has [12]. examples. Pass fewer folds"),
        ({"folds": 5, "validation_split": 0.2}, "folds: .* got validation_split"),
        ({"folds": 5, "validation_data": (X, Y)}, "folds: .* got validation_data"),
    ],
)
def test_members_of_trials(arguments, message):
    call = {"x": X, "y": Y, "epochs": 1, "n_trials": 2}
    if "repeats" in arguments:
        call |= CALL
    with pytest.raises(paceline.UsageError, match=message):
        tuner().search(**(call | arguments))


def test_wilcoxon_needs_members():
    with pytest.raises(paceline.UsageError, match="wilcoxon compares folds or repeats"):
        tuner(pruner="wilcoxon").search(X, Y, **CALL)


def test_few_examples_need_no_smaller_batch_size(study):
    other = tuner(study="few")
    other.search(X[:20], Y[:20], **CALL)
    assert other.results()["state"].tolist() == ["complete"] * 1  # a space of one configuration


# -- data sets -------------------------------------------------------------------------------------


class Batches(keras.utils.PyDataset):
    def __init__(self, n: int = 2) -> None:
        super().__init__()
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        if index >= self.n:
            raise IndexError(index)
        if self.n == 5 and index == 3:
            raise OSError("disk full")
        size = 16 - index * (self.n == 3)
        x = np.full((size, 6), np.nan if self.n == 4 else 0.0, "float32")
        weights = (np.ones(size),) if self.n == 6 else ()
        return x, Y[:size] + (3 if self.n == 7 and index == 4 else 0), *weights


class Endless(Batches):
    """Does not say where it ends."""

    num_batches = None


def yields(*batches: Any) -> Iterator[Any]:
    yield from batches


BATCH = X[:16], Y[:16]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": Y}, r"y can only be used with arrays, .*Leave y out: .* must be \(x, y\)"),
        ({"batch_size": 8}, "batch_size can only be used with arrays, but x is a Batches"),
        (
            {"validation_split": 0.5},
            "validation_split can only .* Pass validation_data",
        ),
        ({"x": Batches(0)}, "x: the Batches contains no batches"),
        ({"x": Batches(7)}, "labels go from 0 to 5"),
        ({"x": Batches(4)}, "x: batch 1 of the Batches holds NaN or infinity. .*allow_nan"),
        ({"x": Batches(5)}, "x: batch 4 of the Batches cannot be read: OSError: disk full"),
        ({"x": Batches(6), "class_weight": {0: 2.0}}, "got both class_weight and sample weights"),
        ({"x": Endless()}, "steps_per_epoch is missing: x is a Endless without a known end"),
        (
            {"x": yields(BATCH), "steps_per_epoch": 2},
            "ended after 1 batches, .*is 2. Make it yield",
        ),
        ({"x": yields(), "steps_per_epoch": 2}, "x: the generator contains no batches"),
        ({"x": yields(X, X), "steps_per_epoch": 1, "class_weight": {0: 1.0}}, "Keras takes none"),
        ({"x": yields((1, 2)), "steps_per_epoch": 1}, "along the first axis, got single numbers"),
        ({"x": yields((X, Y, None, Y)), "steps_per_epoch": 1}, r"must be \(x,\).* got 4"),
        ({"x": yields((X[:0], Y[:0])), "steps_per_epoch": 1}, "no examples"),
        ({"x": yields((X, Y[:9])), "steps_per_epoch": 1}, r"got \[9, 50\] in a batch"),
        ({"validation_data": Endless()}, "validation_steps is missing"),
        ({"validation_data": yields(BATCH)}, "validation_steps is missing"),
        ({"validation_data": Batches(0)}, "validation_data: the Batches contains no batches"),
        ({"x": iter([(X, Y)])}, "can be read only once, .*steps_per_epoch"),
        (
            {"x": yields((TEXT, Y)), "steps_per_epoch": 1},
            "x: a batch of the generator must hold numbers, got text such as 'a cat",
        ),
        ({"objective": "val_auc"}, "val_auc.*Its metrics: loss, accuracy, val_loss"),
    ],
)
def test_a_data_set_that_is_no_arrays(arguments, message):
    call: dict[str, Any] = {"x": Batches(), "epochs": 1, "n_trials": 1, "validation_data": (X, Y)}
    call |= arguments
    with pytest.raises(paceline.PacelineError, match=message):
        tuner(objective=call.pop("objective", None)).search(**call)


def test_folds_are_parts_of_arrays():
    for x in (Batches(), iter([(X, Y)])):
        with pytest.raises(paceline.UsageError, match="folds: x is a .*, but folds need arrays"):
            tuner().search(x, folds=3, epochs=1, n_trials=1)


def test_local_packs_or_says_why_not():
    with pytest.raises(
        paceline.UsageError, match="'packed' cannot train these trials: x has .* of 3 sizes"
    ):
        tuner(executor="packed").search(Batches(3), epochs=1, n_trials=1)
    with pytest.raises(
        paceline.UsageError, match="'packed' cannot train these trials: callbacks: ProgbarLog"
    ):
        tuner(executor="packed").search(X, Y, callbacks=[keras.callbacks.ProgbarLogger()], **CALL)


def test_callbacks_that_cannot_be_copied():
    class Holds(keras.callbacks.Callback):
        def __deepcopy__(self, memo):
            raise TypeError("cannot copy a lock")

    with pytest.raises(paceline.UsageError, match="callbacks: .* TypeError: cannot copy a lock"):
        tuner().search(X, Y, callbacks=[Holds()], **CALL)


# -- a study that is there -------------------------------------------------------------------------


@pytest.fixture
def study():
    """A study of one trial; returns the file that holds it."""

    def build(hp):
        hp.Int("units", 1, 4)
        return toys.softmax()

    tuner(build, study="there", objective="val_accuracy").search(X, Y, **(CALL | {"n_trials": 1}))
    from pathlib import Path

    return Path("runs/there/journal.log")


def wider(hp):
    hp.Int("units", 1, 9)
    return toys.softmax()


def same(hp):
    hp.Int("units", 1, 4)
    return toys.softmax()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"build": wider}, paceline.SpaceError, "units"),
        ({"objective": "val_loss"}, paceline.StudyError, "direction maximize, not minimize"),
        (
            {"objective": "accuracy"},
            paceline.StudyError,
            "created with the objective 'val_accuracy'",
        ),
        ({"objective": "min:val_accuracy"}, paceline.StudyError, "direction"),
    ],
)
def test_a_study_that_conflicts_is_left_as_it_is(study, arguments, error, message):
    def files():
        found = [path for path in study.parent.rglob("*") if path.is_file() and path != study]
        found = [path for path in found if path.name != ".lock"]  # filelock 3.12 truncates it
        return {path: path.stat().st_mtime_ns for path in found}

    before, others = study.read_bytes(), files()
    with pytest.raises(error, match=message):
        tuner(**({"build": same, "study": "there"} | arguments)).search(
            X, Y, **(CALL | {"n_trials": 3})
        )
    after = study.read_bytes()
    assert after.startswith(before)
    # A worker that opens a study tells others of itself, and that it has left; nothing else.
    signs = after[len(before) :].splitlines()
    assert all(b'"system_attr":{"paceline:worker:' in line for line in signs)
    assert files() == others


def test_a_search_that_ends_in_an_error_loses_nothing(study):
    with pytest.raises(paceline.DataError, match="NaN"):
        tuner(same, study="there").search(nan_at(0), Y, **CALL)
    assert tuner(same, study="there").results()["state"].tolist() == ["complete"]
    assert tuner(same, study="there").best_model() is not None


@pytest.mark.slow
def test_allow_nan_and_ignored_classes_are_believed(study):
    labels = np.where(np.arange(50) % 5 == 0, -1, Y)

    def build(hp):
        model = toys.softmax()
        loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=-1)
        model.compile("adam", loss)
        return model

    def masked(hp):
        fill = keras.layers.Lambda(keras.ops.nan_to_num, output_shape=(6,))
        head = keras.layers.Dense(3, activation="softmax")
        return toys.compiled(keras.Sequential([keras.Input((6,)), fill, head]))

    one = tuner(build, study="ignored")
    if np.isfinite(build(None).fit(X, labels, verbose=0).history["loss"]).all():
        one.search(X, labels, **CALL)
    else:  # Keras 3.10's own ignore_class gives NaN: what counts is that the labels are let through
        with pytest.raises(paceline.BuildError, match="loss is nan"):
            one.search(X, labels, **CALL)
    weighted = tuner(study="weighted")
    weighted.search(X, labels, sample_weight=(labels >= 0).astype("float32"), **CALL)
    other = tuner(masked, study="masked")
    other.search(nan_at(3), Y, allow_nan=True, **CALL)
    for found in (weighted, other):
        assert found.results()["state"].tolist() == ["complete"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_is_no_number_is_found_in_floats_of_any_size(dtype: str) -> None:
    bad = np.asarray(nan_at(7)).astype(jax.numpy.dtype(dtype))
    batches = yields((bad[:16], Y[:16]))
    own = {"epochs": 1, "n_trials": 1}
    for data, call in (((bad, Y), CALL), ((batches,), {**own, "steps_per_epoch": 1})):
        with pytest.raises(paceline.DataError, match="NaN"):
            tuner().search(*data, **call)


def test_settings_that_do_not_reach_the_threads_that_train_are_refused(fresh_folder) -> None:
    told = pytest.raises(paceline.UsageError, match="jax.config.update.'jax_default_matmul_prec")
    with jax.default_matmul_precision("float32"), told:
        tuner(study="s").search(X, Y, **CALL)
    assert not Path("runs/s").exists() or not list(Path("runs/s").glob("*.log"))


@pytest.mark.parametrize("executor", ["auto", "fit"])
def test_a_function_of_hp_makes_new_callbacks(fresh_folder, executor: str) -> None:
    """Trials that train side by side would share what one instance has counted."""
    one = keras.callbacks.EarlyStopping("loss")
    with pytest.raises(paceline.UsageError, match="the same EarlyStopping again.*or pass a list"):
        tuner(study="s", executor=executor).search(X, Y, callbacks=lambda hp: [one], **CALL)


@pytest.mark.parametrize("value", [float("inf"), 2**63])
@pytest.mark.parametrize("kind", ["Choice", "Fixed"])
def test_values_that_no_storage_keeps_are_refused(fresh_folder, value: Any, kind: str) -> None:
    def build(hp: Any) -> Any:
        hp.Choice("c", [type(value)(1), value]) if kind == "Choice" else hp.Fixed("c", value)
        return toys.compiled(toys.softmax())

    with pytest.raises(paceline.SpaceError, match="a storage cannot keep"):
        tuner(build, study="s").search(X, Y, **CALL)
    assert not Path("runs/s/journal.log").exists()


def test_the_journal_of_another_program_is_not_touched(fresh_folder):
    """A storage that holds a study of Optuna's own is gone on with where it fits, never broken."""
    storage = optuna.storages.InMemoryStorage()
    optuna.create_study(study_name="s", storage=storage, direction="minimize")
    with pytest.raises(paceline.StudyError, match=re.escape("direction minimize, not maximize")):
        tuner(study="s", storage=storage).search(X, Y, **CALL)
