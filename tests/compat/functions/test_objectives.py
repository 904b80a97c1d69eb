"""What public objectives do: each trial comes to what it comes to alone, or a note says why not."""

from __future__ import annotations

import random
from functools import partial

import keras
import numpy as np
import optuna
import pytest
from optuna.samplers import RandomSampler

import paceline
from compat.functions.pruning_callback import Prunes
from compat.interception.alone import ATOL, RTOL, alone
from compat.interception.functions import X_VAL, Y_VAL, X, Y, network
from marks import slow_where
from paceline.compat.interception.executor_pool import ExecutorPool
from toys import CLASSES


@pytest.fixture(autouse=True)
def _informed():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.INFO)
    yield
    optuna.logging.set_verbosity(before)


def adam(trial):
    return keras.optimizers.Adam(trial.suggest_float("lr", 1e-3, 1e-1, log=True))


def loads_its_data(trial):
    x, y = X.copy(), keras.utils.to_categorical(Y, CLASSES)
    model = network(0, optimizer=adam(trial), loss="categorical_crossentropy")
    model.fit(x, y, validation_split=0.25, epochs=2, verbose=0)
    return model.evaluate(x, y, verbose=0)[0]


def takes_its_data(trial, x, y):
    model = network(0, optimizer=adam(trial))
    return model.fit(x, y, epochs=2, verbose=0).history["loss"][-1]


def stops_early(trial, pruning=Prunes):
    model = network(0, optimizer=adam(trial))
    callbacks = [
        keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=10.0),
        pruning(trial),
    ]
    history = model.fit(
        X, Y, validation_data=(X_VAL, Y_VAL), epochs=5, callbacks=callbacks, verbose=0
    )
    trial.set_user_attr("epochs", len(history.epoch))
    return model.evaluate(X_VAL, Y_VAL, verbose=0)[0]


def trains_long(trial):
    model = network(0, optimizer=adam(trial))
    epochs = trial.suggest_int("epochs", 60, 120)
    history = model.fit(X, Y, epochs=epochs, verbose=0)
    assert history.epoch == list(range(epochs))
    return history.history["loss"][-1]


def chooses_batches_and_epochs(trial):
    model = network(0, optimizer=adam(trial))
    size, epochs = trial.suggest_categorical("batch", [16, 32]), trial.suggest_int("epochs", 1, 3)
    return model.fit(X, Y, batch_size=size, epochs=epochs, verbose=0).history["loss"][-1]


def clears_the_session(trial):
    keras.backend.clear_session()
    model = network(0, optimizer=adam(trial))
    model.fit(X, Y, epochs=2, verbose=0)
    loss = model.evaluate(X_VAL, Y_VAL, verbose=0)[0]
    keras.backend.clear_session()
    return loss


def weighs_classes(trial):
    model = network(0, optimizer=adam(trial))
    weights = {each: 1.0 + each for each in range(CLASSES)}
    return model.fit(X, Y, class_weight=weights, epochs=2, verbose=0).history["loss"][-1]


def validates_now_and_then(trial):
    model = network(0, optimizer=adam(trial))
    history = model.fit(
        X, Y, validation_data=(X_VAL, Y_VAL), validation_freq=2, epochs=4, verbose=0
    )
    assert len(history.history["val_loss"]) == 2
    return history.history["val_loss"][-1]


def fine_tunes(trial):
    model = network(0, optimizer=adam(trial))
    model.fit(X, Y, epochs=1, verbose=0)
    model.layers[0].trainable = False
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy")
    return model.fit(X, Y, epochs=2, verbose=0).history["loss"][-1]


def predicts(trial):
    model = network(0, optimizer=adam(trial))
    model.fit(X, Y, epochs=1, verbose=0)
    return float(np.mean(model.predict(X_VAL, verbose=0).argmax(1) == Y_VAL))


def uses_old_names(trial):
    suggest = getattr(trial, "suggest_loguniform", None)
    lr = suggest("lr", 1e-3, 1e-1) if suggest else trial.suggest_float("lr", 1e-3, 1e-1, log=True)
    model = network(0, optimizer=keras.optimizers.Adam(lr))
    return model.fit(X, Y, verbose=0).history["loss"][-1]


def optimized(objective, capsys, n_trials=2):
    """A study of trials of the objective, and the notes."""
    study = optuna.create_study(sampler=RandomSampler(seed=1), pruner=optuna.pruners.NopPruner())
    random.seed(5)
    paceline.optimize(study, objective, n_trials=n_trials)
    return study, capsys.readouterr().err


def assert_as_one_after_the_other(study, objective):
    """Asserts that each trial has the value that Optuna's own loop comes to with its seed."""
    seeds = random.Random(5)
    for trial in study.trials:
        assert trial.state.name == "COMPLETE"
        expected = alone(
            partial(objective, optuna.trial.FixedTrial(trial.params)), seeds.getrandbits(32)
        )
        assert trial.value == pytest.approx(expected, rel=RTOL, abs=ATOL), trial.number


PACKED = [
    loads_its_data,
    partial(takes_its_data, x=X, y=Y),
    lambda trial: takes_its_data(trial, X, Y),
    stops_early,
    trains_long,
    chooses_batches_and_epochs,
    clears_the_session,
    weighs_classes,
    fine_tunes,
    predicts,
    uses_old_names,
]


@pytest.mark.parametrize(
    "objective",
    slow_where(PACKED, lambda each: each is not loads_its_data),
    ids=lambda each: getattr(each, "__name__", "partial"),
)
@pytest.mark.filterwarnings("ignore:.*suggest_loguniform:FutureWarning")
def test_trials_pack_and_come_to_what_they_come_to_alone(objective, capsys):
    study, notes = optimized(objective, capsys)
    assert " in packs" in notes
    assert "alone" not in notes
    assert "one at a time" not in notes
    assert_as_one_after_the_other(study, objective)


def test_equal_data_that_each_trial_loads_are_one(monkeypatch, capsys):
    sizes = []
    before = ExecutorPool.of

    def of(pool, arguments, model):
        executor = before(pool, arguments, model)
        sizes.append(len(list(pool)))
        return executor

    monkeypatch.setattr(ExecutorPool, "of", of)
    optimized(loads_its_data, capsys, n_trials=3)
    assert sizes == [1, 1, 1]


@pytest.mark.slow
def test_validation_freq_trains_alone_with_a_note(capsys):
    study, notes = optimized(validates_now_and_then, capsys)
    assert "train in Keras' own fit, one at a time: validation_freq is given" in notes
    assert_as_one_after_the_other(study, validates_now_and_then)


def test_a_checkpoint_with_one_path_for_all_runs_one_at_a_time(tmp_path, capsys):
    path = str(tmp_path / "best.weights.h5")

    def objective(trial):
        model = network(0, optimizer=adam(trial))
        keep = keras.callbacks.ModelCheckpoint(
            path, monitor="loss", save_best_only=True, save_weights_only=True
        )
        model.fit(X, Y, epochs=2, callbacks=[keep], verbose=0)
        model.load_weights(path)
        return model.evaluate(X_VAL, Y_VAL, verbose=0)[0]

    study, notes = optimized(objective, capsys)
    assert "trials run one at a time, in order: ModelCheckpoint" in notes
    assert_as_one_after_the_other(study, objective)


def test_one_optimizer_for_several_candidates_runs_one_at_a_time(capsys):
    optimizers = {"adam": keras.optimizers.Adam(0.05)}

    def objective(trial):
        trial.suggest_float("dropout", 0.1, 0.5)
        name = trial.suggest_categorical("optimizer", ["adam"])
        model = network(0, optimizer=optimizers[name])
        return model.fit(X, Y, epochs=2, verbose=0).history["loss"][-1]

    study, notes = optimized(objective, capsys, n_trials=3)
    assert "they share the Adam" in notes
    # Its moments go on from trial to trial.
    optimizers["adam"] = keras.optimizers.Adam(0.05)
    assert_as_one_after_the_other(study, objective)


@pytest.mark.slow
def test_a_model_made_outside_and_compiled_in_each_trial_runs_one_at_a_time(capsys):
    model = keras.Sequential([keras.Input((X.shape[1],)), keras.layers.Dense(CLASSES)])
    weights = model.get_weights()

    def objective(trial):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(adam(trial), loss)
        return model.fit(X, Y, epochs=2, verbose=0).history["loss"][-1]

    study, notes = optimized(objective, capsys, n_trials=3)
    assert "one at a time" in notes
    model.set_weights(weights)
    assert_as_one_after_the_other(study, objective)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tensor", "dataset"])
def test_data_of_tensorflow(kind, capsys):
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is in an environment of its own")

    def objective(trial):
        model = network(0, optimizer=adam(trial))
        if kind == "tensor":
            x, y = tf.convert_to_tensor(X), tf.convert_to_tensor(Y)
            return model.fit(x, y, epochs=2, verbose=0).history["loss"][-1]
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
        return model.fit(data, epochs=2, shuffle=False, verbose=0).history["loss"][-1]

    study, notes = optimized(objective, capsys)
    assert "2 fits in packs" in notes
    assert_as_one_after_the_other(study, objective)


@pytest.mark.filterwarnings("ignore:.*optuna.integration:FutureWarning")  # since Optuna 4.9
@pytest.mark.parametrize("name", ["KerasPruningCallback", "TFKerasPruningCallback"])
def test_the_pruning_callbacks_of_optuna_integration(name, capsys):
    pytest.importorskip("optuna_integration", reason="make test-compat has it")
    if name.startswith("TF"):
        pytest.importorskip("tensorflow", reason="TFKerasPruningCallback imports it")
    from paceline.compat.optuna import integration

    callback = getattr(integration, name)
    objective = partial(stops_early, pruning=lambda trial: callback(trial, "val_loss"))
    study, notes = optimized(objective, capsys)
    assert "2 fits in packs" in notes
    assert_as_one_after_the_other(study, objective)

    def objective(trial):
        model = network(0, optimizer=adam(trial))
        history = model.fit(
            X,
            Y,
            validation_data=(X_VAL, Y_VAL),
            epochs=4,
            callbacks=[callback(trial, "val_loss")],
            verbose=0,
        )
        return history.history["val_loss"][-1]

    pruner = optuna.pruners.ThresholdPruner(upper=0.0, n_warmup_steps=1)
    study = optuna.create_study(sampler=RandomSampler(seed=0), pruner=pruner)
    paceline.optimize(study, objective, n_trials=2)
    assert [trial.state.name for trial in study.trials] == ["PRUNED"] * 2
    assert [list(trial.intermediate_values) for trial in study.trials] == [[0, 1]] * 2
    assert "2 trials, 2 fits in packs (1 program), 2 pruned, " in capsys.readouterr().err


@pytest.mark.slow
def test_an_object_that_has_any_attribute_may_be_reached(capsys):
    class Names:
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return Names()

        def __call__(self):
            return Names()

    # As sqlalchemy.func, an object of a library.
    Names.__module__ = "sqlalchemy.sql.functions"
    reached = Names()

    def objective(trial):
        assert reached is not None
        return takes_its_data(trial, X, Y)

    study, notes = optimized(objective, capsys)
    assert "2 fits in packs" in notes
    assert_as_one_after_the_other(study, objective)
