"""User code that trains by itself, hooks, failures: as KerasTuner runs them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import paceline
import paceline.compat.keras_tuner as ours
import toys
from compat.keras_tuner import spaces

X, Y = toys.data()
DATA = {"x": X, "y": Y, "validation_data": (X, Y), "epochs": 2, "batch_size": 25, "verbose": 0}


def hypermodel_of(kt: Any) -> Any:
    class Own(kt.HyperModel):
        """Chooses in ``fit``, too."""

        def build(self, hp: Any) -> Any:
            return spaces.small(hp)

        def fit(self, hp: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            kwargs["batch_size"] = hp.Choice("batch", [10, 25])
            return model.fit(*args, shuffle=hp.Boolean("shuffle"), **kwargs)

    return Own()


def test_a_hypermodel_s_own_fit(kt, tmp_path):
    tuner = kt.RandomSearch(hypermodel_of(kt), "val_loss", max_trials=2, seed=3, directory=tmp_path)
    tuner.search(**DATA)
    trials = list(tuner.oracle.trials.values())
    assert [trial.status for trial in trials] == ["COMPLETED"] * 2
    # What fit declares is known after the first trial, whose values of it are the defaults.
    assert trials[0].hyperparameters["batch"] == 10
    assert not trials[0].hyperparameters["shuffle"]
    assert set(trials[1].hyperparameters.values) == {"units", "dropout", "lr", "batch", "shuffle"}
    assert set(trials[0].metrics.metrics) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    model = tuner.get_best_models()[0]
    score = tuner.oracle.get_best_trials()[0].score
    assert model.evaluate(X, Y, verbose=0)[0] == pytest.approx(score, rel=1e-5)


@pytest.mark.parametrize("result", [0.25, {"val_loss": 0.25, "other": 3}, [0.2, 0.3]])
def test_what_fit_returns_is_the_result(kt, result, tmp_path):
    class Own(kt.HyperModel):
        def build(self, hp: Any) -> Any:
            hp.Float("x", 0, 1)
            return toys.softmax()

        def fit(self, hp: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            return result

    tuner = kt.RandomSearch(Own(), "val_loss", max_trials=1, directory=tmp_path)
    tuner.search(verbose=0)
    (trial,) = tuner.oracle.trials.values()
    assert trial.score == pytest.approx(0.25)


class NoResult:
    """Mixed into a hypermodel: forgets to return."""

    def build(self, hp: Any) -> Any:
        hp.Float("x", 0, 1)
        return toys.softmax()

    def fit(self, hp: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        pass


def test_a_fit_that_returns_nothing_says_so(kt, tmp_path):
    class Own(NoResult, kt.HyperModel):
        pass

    tuner = kt.RandomSearch(Own(), "val_loss", max_trials=1, directory=tmp_path)
    with pytest.raises(kt.errors.FatalTypeError, match=r"fit\(\) is None. Did you forget"):
        tuner.search(verbose=0)


def test_a_dict_without_the_objective_says_so(kt, tmp_path):
    class Own(NoResult, kt.HyperModel):
        def fit(self, hp: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            return {"loss": 1.0}

    tuner = kt.RandomSearch(Own(), "val_loss", max_trials=1, directory=tmp_path)
    with pytest.raises(kt.errors.FatalValueError, match="specified objective, val_loss, as one of"):
        tuner.search(verbose=0)


def test_a_history_without_the_objective_says_so(tmp_path):
    tuner = ours.RandomSearch(
        hypermodel_of(ours), "val_loss", max_trials=4, directory=tmp_path, seed=1
    )
    with pytest.raises(RuntimeError, match="(?s)consecutive.*val_loss, as one.*Received: acc"):
        tuner.search(X, Y, verbose=0)


def test_a_trial_without_the_objective_fails_alone(kt, tmp_path):
    """One of four is fitted without validation data."""

    class Sometimes(kt.HyperModel):
        def build(self, hp: Any) -> Any:
            hp.Choice("number", [0, 1, 2, 3])
            return toys.compiled(toys.softmax())

        def fit(self, hp: Any, model: Any, x: Any, y: Any, **given: Any) -> Any:
            if hp.get("number") == 2:
                given.pop("validation_data")
            return model.fit(x, y, **given)

    tuner = kt.GridSearch(Sometimes(), "val_loss", max_trials=4, directory=tmp_path)
    tuner.search(X, Y, validation_data=(X, Y), verbose=0)
    states = [trial.status for trial in tuner.oracle.trials.values()]
    assert sorted(states) == ["COMPLETED"] * 3 + ["FAILED"]


def test_no_objective_wants_a_number(kt, tmp_path):
    tuner = kt.RandomSearch(spaces.small, max_trials=1, directory=tmp_path)
    with pytest.raises(kt.errors.FatalTypeError, match="single float when `objective` is left un"):
        tuner.search(**DATA)


def test_a_tuner_s_own_run_trial_tunes_anything(kt, tmp_path):
    class Parabola(kt.RandomSearch):
        def run_trial(self, trial: Any, *args: Any, **kwargs: Any) -> float:
            x = trial.hyperparameters.Float("x", -2.0, 2.0)
            return x * x + 2 * x + 1

    tuner = Parabola(max_trials=20, seed=2, directory=tmp_path)
    tuner.search(verbose=0)
    best = tuner.get_best_hyperparameters()[0].get("x")
    assert abs(best + 1) < 0.5
    assert tuner.oracle.get_best_trials()[0].score == pytest.approx((best + 1) ** 2)


def logging_tuner(kt: Any) -> type:
    class Logging(kt.RandomSearch):
        log: list[Any] = []  # noqa: RUF012 - of one test

        def pre_create_trial(self) -> None:
            if self.log[-1:] != ["pre"]:
                self.log.append("pre")

        def on_search_begin(self) -> None:
            self.log.append("search begins")

        def on_search_end(self) -> None:
            self.log.append("search ends")

        def on_trial_begin(self, trial: Any) -> None:
            self.log.append(f"{trial.trial_id} begins")

        def on_trial_end(self, trial: Any) -> None:
            super().on_trial_end(trial)
            self.log.append(f"{trial.trial_id} ends {trial.status}")

        def on_epoch_begin(self, trial: Any, model: Any, epoch: int, logs: Any = None) -> None:
            self.log.append(f"epoch {epoch}")

        def on_epoch_end(self, trial: Any, model: Any, epoch: int, logs: Any = None) -> None:
            self.log.append((epoch, isinstance(model, keras.Model), sorted(logs)))

        def on_batch_end(self, trial: Any, model: Any, batch: int, logs: Any = None) -> None:
            self.log.append(f"batch {batch}")

    return Logging


def test_hooks_are_called_in_the_same_order(kt, tmp_path):
    tuner = logging_tuner(kt)(spaces.small, "val_loss", max_trials=1, directory=tmp_path)
    tuner.search(**DATA)
    names = ["accuracy", "loss", "val_accuracy", "val_loss"]
    epochs = [
        each
        for epoch in range(2)
        for each in (f"epoch {epoch}", "batch 0", "batch 1", (epoch, True, names))
    ]
    assert tuner.log == [
        "search begins",
        "pre",
        "0 begins",
        *epochs,
        "0 ends COMPLETED",
        "pre",
        "search ends",
    ]


def test_hooks_of_trials_are_called_in_packs_too(tmp_path):
    class Logging(ours.RandomSearch):
        log: list[str] = []  # noqa: RUF012 - of one test

        def on_trial_begin(self, trial: Any) -> None:
            self.log.append(f"{trial.trial_id} begins")

        def on_trial_end(self, trial: Any) -> None:
            super().on_trial_end(trial)
            self.log.append(f"{trial.trial_id} ends {trial.status}")

    tuner = Logging(spaces.small, "val_loss", max_trials=2, directory=tmp_path)
    tuner.search(**DATA)
    assert sorted(tuner.log) == [
        "0 begins",
        "0 ends COMPLETED",
        "1 begins",
        "1 ends COMPLETED",
    ]
    for n in "01":
        assert tuner.log.index(f"{n} begins") < tuner.log.index(f"{n} ends COMPLETED")


def test_callbacks_are_copied_for_each_trial(tmp_path):
    stop = keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=9.0)
    tuner = ours.RandomSearch(spaces.small, "val_loss", max_trials=2, directory=tmp_path, seed=1)
    tuner.search(**{**DATA, "epochs": 5}, callbacks=[stop])
    assert [t.status for t in tuner.oracle.trials.values()] == ["COMPLETED"] * 2
    assert all(trial.best_step <= 1 for trial in tuner.oracle.trials.values())
    assert stop.stopped_epoch == 0  # it is the user's own still


def test_callbacks_that_cannot_be_copied_say_so(kt, tmp_path):
    class Locked(keras.callbacks.Callback):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("cannot be copied")

    tuner = kt.RandomSearch(spaces.small, "val_loss", max_trials=1, directory=tmp_path)
    with pytest.raises(kt.errors.FatalValueError, match="should be deep-copyable"):
        tuner.search(**DATA, callbacks=[Locked()])


def failing(kt: Any, error: type[Exception], times: int) -> Any:
    """A build whose first trials fail, after the builds of the space."""
    built: list[int] = []

    def build(hp: Any) -> Any:
        model = spaces.small(hp)
        if hp["units"] == 8:  # not the default: the first look goes well
            built.append(1)
            if len(built) <= times:
                raise error("this one fails")
        return model

    return build


def eights(kt: Any) -> Any:
    hp = kt.HyperParameters()
    hp.Choice("units", [4, 8])
    return hp


class Eight:
    """Mixed into an oracle: proposes 8 units only."""

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        dropout = 0.1 + 0.01 * int(trial_id)
        return {"status": "RUNNING", "values": {"units": 8, "dropout": dropout, "lr": 1e-2}}


def tuner_with(kt: Any, build: Any, folder: Path, **kwargs: Any) -> Any:
    class Oracle(Eight, kt.Oracle):
        pass

    oracle = Oracle(objective="val_loss", max_trials=4, **kwargs)
    return kt.Tuner(oracle, build, directory=folder)


@pytest.mark.slow
def test_a_trial_that_crashes_is_tried_again(kt, tmp_path):
    build = failing(kt, ValueError, times=1)
    tuner = tuner_with(kt, build, tmp_path, max_retries_per_trial=1)
    tuner.search(**{**DATA, "epochs": 1})
    assert [t.status for t in tuner.oracle.trials.values()] == ["COMPLETED"] * 4
    assert tuner.oracle._run_times["0"] == 2


def test_a_failed_trial_is_not_tried_again(kt, tmp_path):
    build = failing(kt, kt.errors.FailedTrialError, times=1)
    tuner = tuner_with(kt, build, tmp_path, max_retries_per_trial=5)
    tuner.search(**{**DATA, "epochs": 1})
    status = [t.status for t in tuner.oracle.trials.values()]
    assert status == ["FAILED", "COMPLETED", "COMPLETED", "COMPLETED"]
    assert "this one fails" in tuner.oracle.get_trial("0").message
    assert tuner.oracle.get_best_trials(1)[0].status == "COMPLETED"


def test_a_fatal_error_ends_the_search(kt, tmp_path):
    tuner = tuner_with(kt, failing(kt, kt.errors.FatalValueError, times=1), tmp_path)
    with pytest.raises(kt.errors.FatalValueError, match="this one fails"):
        tuner.search(**{**DATA, "epochs": 1})


def test_failures_in_a_row_end_the_search(kt, tmp_path):
    build = failing(kt, ValueError, times=9)
    tuner = tuner_with(kt, build, tmp_path, max_consecutive_failed_trials=2)
    with pytest.raises(RuntimeError, match=r"exceeded the limit of 2\.(.|\n)*this one fails"):
        tuner.search(**{**DATA, "epochs": 1})
    assert len(tuner.oracle.trials) == 2


def test_errors_of_keras_tuner_itself_are_known(theirs, tmp_path):
    build = failing(theirs, theirs.errors.FailedTrialError, times=1)
    tuner = tuner_with(ours, build, tmp_path, max_retries_per_trial=5)
    tuner.search(**{**DATA, "epochs": 1})
    assert tuner.oracle.get_trial("0").status == "FAILED"


def test_a_hypermodel_and_hyperparameters_of_keras_tuner_itself(theirs, tmp_path):
    class Real(theirs.HyperModel):
        def build(self, hp: Any) -> Any:
            return spaces.small(hp)

    hp = theirs.HyperParameters()
    hp.Choice("lr", [0.03])
    objective = theirs.Objective("val_accuracy", "max")
    tuner = ours.RandomSearch(
        Real(), objective, max_trials=2, hyperparameters=hp, directory=tmp_path
    )
    tuner.search(**{**DATA, "epochs": 1})
    for trial in tuner.oracle.trials.values():
        assert trial.hyperparameters["lr"] == 0.03
        assert trial.status == "COMPLETED"
    model = tuner.hypermodel.build(tuner.get_best_hyperparameters()[0])
    assert model.built


def test_an_hp_built_by_hand_builds_a_model(kt):
    hp = kt.HyperParameters()
    hp.values.update({"units": 8, "dropout": 0.2, "lr": 0.001})
    assert spaces.small(hp).layers[0].units == 8


def test_a_loss_that_runs_away_keeps_what_came_before(kt, tmp_path):
    def build(hp: Any) -> Any:
        lr = hp.Choice("lr", [1e-2, 1e38])
        model = keras.Sequential([keras.Input((toys.FEATURES,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(lr), "mse")
        return model

    tuner = kt.GridSearch(build, "val_loss", directory=tmp_path)
    tuner.search(**DATA)
    status = {t.hyperparameters["lr"]: t.status for t in tuner.oracle.trials.values()}
    assert status == {1e-2: "COMPLETED", 1e38: "FAILED"}


def test_several_objectives_are_summed(kt, tmp_path):
    objective = [kt.Objective("val_loss", "min"), kt.Objective("val_accuracy", "max")]
    tuner = kt.RandomSearch(spaces.small, objective, max_trials=1, directory=tmp_path)
    tuner.search(**{**DATA, "epochs": 1})
    (trial,) = tuner.oracle.trials.values()
    loss = trial.metrics.get_best_value("val_loss")
    assert trial.score == pytest.approx(loss - trial.metrics.get_best_value("val_accuracy"))


def test_scikit_learn_models(kt, tmp_path):
    from sklearn import linear_model, metrics, model_selection

    def build(hp: Any) -> Any:
        return linear_model.RidgeClassifier(alpha=hp.Float("alpha", 1e-3, 1, sampling="log"))

    tuner = kt.SklearnTuner(
        oracle=kt.oracles.RandomSearchOracle(kt.Objective("score", "max"), max_trials=2, seed=1),
        hypermodel=build,
        scoring=metrics.make_scorer(metrics.accuracy_score),
        metrics=metrics.accuracy_score,
        cv=model_selection.StratifiedKFold(3),
        directory=tmp_path,
    )
    tuner.search(X, Y)
    best = tuner.oracle.get_best_trials()[0]
    assert best.score == best.metrics.get_best_value("accuracy_score")
    assert tuner.get_best_models()[0].predict(X).shape == (len(X),)
    draws = [t.hyperparameters["alpha"] for t in tuner.oracle.trials.values()]
    assert np.all(np.array(draws) > 0)


def test_a_scikit_learn_model_is_not_unpickled(tmp_path):
    def tuner() -> Any:
        from sklearn import linear_model

        return ours.SklearnTuner(
            ours.oracles.RandomSearchOracle(ours.Objective("score", "max"), max_trials=1, seed=1),
            lambda hp: linear_model.RidgeClassifier(alpha=hp.Float("alpha", 0.1, 1)),
            directory=tmp_path,
        )

    tuner().search(X, Y)
    with pytest.raises(ours.errors.ProjectError, match="trained by another process.*hypermodel.bu"):
        tuner().get_best_models()
    assert not list(tmp_path.rglob("*.pickle"))


def test_interleave_of_scikit_learn_models_is_checked(tmp_path):
    oracle = ours.oracles.RandomSearchOracle(ours.Objective("score", "max"), max_trials=1)
    ours.SklearnTuner(oracle, spaces.small, directory=tmp_path, concurrent=False)
    with pytest.raises(paceline.UsageError, match="concurrent: 'no' is not True, False or None"):
        ours.SklearnTuner(oracle, spaces.small, directory=tmp_path, concurrent="no")


@pytest.mark.parametrize("hypermodel", [3, "build"])
def test_a_hypermodel_that_is_none_says_what_to_pass(kt, hypermodel, tmp_path):
    with pytest.raises(kt.errors.FatalValueError, match="The `hypermodel` argument should be"):
        kt.RandomSearch(hypermodel, "val_loss", directory=tmp_path)


def test_no_hypermodel_and_no_run_trial(kt, tmp_path):
    with pytest.raises(ValueError, match="Received `hypermodel=None`"):
        kt.RandomSearch(objective="val_loss", directory=tmp_path)


def test_an_unknown_argument_is_refused(kt, tmp_path):
    with pytest.raises(ValueError, match=r"Unrecognized arguments \['trials'\]"):
        kt.RandomSearch(spaces.small, "val_loss", trials=3, directory=tmp_path)


def test_a_build_that_returns_no_model_says_so(kt, tmp_path):
    tuner = kt.RandomSearch(lambda hp: hp.Int("a", 1, 3), "loss", max_trials=2, directory=tmp_path)
    with pytest.raises(kt.errors.FatalTypeError, match="to return a valid Keras Model instance"):
        tuner.search(**DATA)


def test_an_objective_without_validation_data_says_so(tmp_path):
    tuner = ours.RandomSearch(spaces.small, "val_accuracy", max_trials=1, directory=tmp_path)
    with pytest.raises(paceline.ObjectiveError, match="Pass validation_data="):
        tuner.search(X, Y, verbose=0)


PATHS = """
import sys
sys.modules["keras_tuner"] = None  # not installed
from paceline.compat import keras_tuner as kt
import paceline.compat.keras_tuner as kt2
from paceline.compat.keras_tuner.engine.hyperparameters import HyperParameters, Int, Choice
from paceline.compat.keras_tuner.engine.hyperparameters import hp_types, hp_utils, hyperparameters
from paceline.compat.keras_tuner.engine.hyperparameters.hyperparameter import HyperParameter
from paceline.compat.keras_tuner.engine import conditions, stateful, tuner_utils
from paceline.compat.keras_tuner.engine.tuner_utils import SaveBestEpoch, TunerCallback, Display
import paceline.compat.keras_tuner.applications
import paceline.compat.keras_tuner.protos
from paceline.compat.keras_tuner.distribute.utils import has_chief_oracle
from paceline.compat.keras_tuner.utils import to_list, try_clear
from paceline.compat.keras_tuner.engine.hypermodel import HyperModel
from paceline.compat.keras_tuner.engine.tuner import Tuner, maybe_distribute
from paceline.compat.keras_tuner.engine.base_tuner import BaseTuner
from paceline.compat.keras_tuner.engine.oracle import Oracle, Objective
from paceline.compat.keras_tuner.engine.trial import Trial, TrialStatus
from paceline.compat.keras_tuner.engine.metrics_tracking import infer_metric_direction
from paceline.compat.keras_tuner.tuners import RandomSearch, SklearnTuner
from paceline.compat.keras_tuner.oracles import HyperbandOracle
from paceline.compat.keras_tuner.errors import FailedTrialError, FatalRuntimeError
import paceline
assert kt is kt2 and kt.HyperParameters is HyperParameters is hyperparameters.HyperParameters
assert issubclass(HyperParameters, paceline.HyperParameters) and not has_chief_oracle()
assert to_list((1, 2)) == [1, 2] and isinstance(hp_types.Int("a", 1, 3), HyperParameter)
assert isinstance(Int("a", 1, 3), Int) and not isinstance(Int("a", 1, 3), Choice)
assert Int("a", 1, 3, conditions=[]).max_value == 3
for module, name in ((kt.applications, "HyperResNet"), (kt.protos, "get_proto")):
    try:
        getattr(module, name)()
    except (ImportError, paceline.errors.MissingExtraError) as error:
        assert "pip install keras-tuner" in str(error)
    else:
        raise AssertionError(f"there is {name}")
"""


@pytest.mark.slow
def test_every_path_imports_without_keras_tuner():
    done = subprocess.run(
        [sys.executable, "-c", PATHS], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_a_hypermodel_that_cannot_be_imported_says_why(monkeypatch):
    """As without six, which KerasTuner 1.4.8 needs and does not declare."""
    monkeypatch.setitem(sys.modules, "keras_tuner.src.applications", None)  # its import fails
    with pytest.raises(
        ImportError, match=r"HyperResNet is a hypermodel of KerasTuner, .* halted.*: pip install"
    ):
        exec("from paceline.compat.keras_tuner.applications import HyperResNet", {})


def test_every_public_name_is_there(theirs):
    def names(module: Any) -> set[str]:
        return {n for n in dir(module) if not n.startswith("_") and n != "src"}

    assert names(theirs) <= names(ours)
    for part in ("tuners", "oracles", "errors"):
        assert names(getattr(theirs, part)) <= names(getattr(ours, part))
    for part in names(theirs.engine):
        theirs_names = names(getattr(theirs.engine, part))
        assert theirs_names <= names(getattr(ours.engine, part)), part
    for cls in ("RandomSearch", "Oracle", "HyperModel", "HyperParameters", "Objective"):
        assert names(getattr(theirs, cls)) <= names(getattr(ours, cls)), cls


def test_an_oracle_elsewhere_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("KERASTUNER_ORACLE_IP", "127.0.0.1")
    with pytest.raises(
        ours.errors.FatalRuntimeError, match="no parallel tuning over several machines"
    ):
        ours.RandomSearch(spaces.small, "val_loss", directory=tmp_path)


@pytest.mark.parametrize("verbose", [0, 1])
def test_what_trains_alone_is_told(verbose, tmp_path, capsys, caplog):
    """As a warning of the log if KerasTuner's own output is off."""

    class OnTest(keras.callbacks.Callback):
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            pass

    class Own(ours.HyperModel):
        def build(self, hp: Any) -> Any:
            return spaces.small(hp)

        def fit(self, hp: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            return model.fit(*args, **{**kwargs, "callbacks": [OnTest()]})

    tuner = ours.RandomSearch(Own(), "val_loss", max_trials=2, directory=tmp_path)
    tuner.search(X[:20], Y[:20], validation_data=(X[:20], Y[:20]), verbose=verbose)
    said = "Keras' own fit, one at a time: callbacks: OnTest has its own on_test_batch_end()"
    logged = [record for record in caplog.records if said in record.getMessage()]
    assert [(each.name, each.levelname) for each in logged] == [("paceline", "WARNING")] * (
        not verbose
    )
    assert capsys.readouterr().err.count(said) == bool(verbose)


def test_fits_of_hypermodels_train_in_packs(tmp_path, monkeypatch, capsys):
    from paceline.compat.interception import engine

    fits: list[Any] = []
    run = engine.Engine.run

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        for outcome in run(self, *args, **kwargs):
            fits.extend(outcome.fits)
            yield outcome

    monkeypatch.setattr(engine.Engine, "run", watched)
    tuner = ours.RandomSearch(
        hypermodel_of(ours), "val_loss", max_trials=3, seed=3, directory=tmp_path
    )
    tuner.search(**{**DATA, "verbose": 1})
    assert len(fits) == 3
    assert {fit.why_alone for fit in fits} == {None}
    assert [trial.status for trial in tuner.oracle.trials.values()] == ["COMPLETED"] * 3


def test_trials_with_epoch_hooks_train_side_by_side(tmp_path):
    seen: list[Any] = []

    class Watching(ours.RandomSearch):
        def on_epoch_end(self, trial: Any, model: Any, epoch: int, logs: Any = None) -> None:
            loss = model.evaluate(X, Y, verbose=0)[0]
            seen.append((trial.trial_id, epoch, loss, logs["val_loss"]))

    tuner = Watching(spaces.small, "val_loss", max_trials=2, seed=3, directory=tmp_path)
    tuner.search(**DATA)
    assert sorted(each[:2] for each in seen) == [(t, e) for t in "01" for e in range(2)]
    for _, _, evaluated, logged in seen:  # the model is as it was at the end of the epoch
        assert evaluated == pytest.approx(logged, rel=1e-5)


def test_executions_of_a_hypermodel_are_averaged(tmp_path):
    tuner = ours.RandomSearch(
        hypermodel_of(ours),
        "val_loss",
        max_trials=1,
        seed=3,
        directory=tmp_path,
        executions_per_trial=2,
    )
    tuner.search(**DATA)
    (trial,) = tuner.oracle.trials.values()
    best = tuner.load_model(trial).evaluate(X, Y, verbose=0)[0]
    assert best < trial.score  # the better one's weights, and the mean of both


@pytest.mark.slow
def test_hyperband_with_callbacks_counts_epochs_on(tmp_path):
    seen: set[int] = set()

    class Counting(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            seen.add(epoch)

        def __deepcopy__(self, memo: Any) -> Any:
            return Counting()

    tuner = ours.Hyperband(
        spaces.small, "val_loss", max_epochs=2, factor=2, seed=1, directory=tmp_path
    )
    data = {name: value for name, value in DATA.items() if name != "epochs"}
    tuner.search(**data, callbacks=[Counting()])
    trials = tuner.oracle.trials.values()
    assert {trial.status for trial in trials} == {"COMPLETED"}
    assert any(trial.hyperparameters["tuner/initial_epoch"] == 1 for trial in trials)
    assert seen == {0, 1}


@pytest.mark.slow
def test_a_search_goes_on_when_there_may_be_more_trials(tmp_path):
    tuner = ours.RandomSearch(spaces.small, "val_loss", max_trials=1, directory=tmp_path, seed=1)
    tuner.search(**{**DATA, "epochs": 1})
    tuner.search(**{**DATA, "epochs": 1})  # there is nothing left to do
    assert list(tuner.oracle.trials) == ["0"]
    tuner.oracle.max_trials = 2
    tuner.search(**{**DATA, "epochs": 1})
    assert list(tuner.oracle.trials) == ["0", "1"]


@pytest.mark.slow
def test_a_strategy_of_tensorflow_is_not_used_and_says_so(tmp_path, capsys):
    tuner = ours.RandomSearch(
        spaces.small, "val_loss", max_trials=1, directory=tmp_path, distribution_strategy=object()
    )
    assert "distribution_strategy is for the TensorFlow backend" in capsys.readouterr().err
    tuner.search(**{**DATA, "epochs": 1})
    assert tuner.oracle.get_trial("0").status == "COMPLETED"


def arguments(function: Any) -> list[tuple[str, Any]]:
    """Names and defaults of arguments, in order, but for ``*`` and ``**``."""
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.default) for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def test_every_signature_is_theirs(theirs):
    pairs = [(getattr(theirs, name), getattr(ours, name)) for name in PUBLIC]
    pairs += [(getattr(theirs.oracles, n), getattr(ours.oracles, n)) for n in ours.oracles.__all__]
    pairs.append((theirs.engine.trial.Trial, ours.engine.trial.Trial))
    for there, here in pairs:
        names = [n for n in dir(there) if not n.startswith("_") and "proto" not in n]
        for name in ["__init__", *names]:
            yours, mine = getattr(there, name), getattr(here, name)
            if callable(yours) and yours is not object.__init__:
                given = arguments(yours)
                assert arguments(mine)[: len(given)] == given, f"{there.__name__}.{name}"


PUBLIC = [
    "BayesianOptimization",
    "GridSearch",
    "HyperModel",
    "Hyperband",
    "Objective",
    "Oracle",
    "RandomSearch",
    "SklearnTuner",
    "Tuner",
]


def test_a_model_with_a_fit_of_its_own_needs_no_data(kt, tmp_path):
    class Own(keras.Model):
        def fit(self, **kwargs: Any) -> Any:
            return {"loss": self.rate}

    class Builds(kt.HyperModel):
        def build(self, hp: Any) -> Any:
            model = Own()
            model.rate = hp.Choice("rate", [0.5, 0.25])
            return model

    tuner = kt.GridSearch(Builds(), "loss", directory=tmp_path)
    tuner.search(verbose=0)
    assert [trial.score for trial in tuner.oracle.trials.values()] == [0.5, 0.25]


# -- what trials share -----------------------------------------------------------------------------


class Sharing:
    """Mixed into a hypermodel: reads after ``fit`` what it has written before."""

    def build(self, hp: Any) -> Any:
        self.rate = hp.Choice("lr", [0.01, 0.1, 0.3])
        model = toys.softmax()
        model.optimizer.learning_rate = self.rate
        return model

    def fit(self, hp: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        history = model.fit(*args, **kwargs).history
        return {"val_loss": history["val_loss"][-1], "rate": self.rate}


@pytest.mark.parametrize("concurrent", [{}, {"concurrent": False}])
def test_what_a_hypermodel_writes_is_of_its_trial(concurrent, tmp_path, capsys):
    class Own(Sharing, ours.HyperModel):
        pass

    tuner = ours.GridSearch(Own(), "val_loss", directory=tmp_path, seed=1, **concurrent)
    tuner.search(**{**DATA, "verbose": 1})
    trials = tuner.oracle.trials.values()
    rates = [trial.metrics.get_last_value("rate") for trial in trials]
    assert rates == [trial.hyperparameters["lr"] for trial in trials] == [0.01, 0.1, 0.3]
    said = "trials run one at a time, in order: Sharing.build() changes 'self.rate'"
    assert (said in capsys.readouterr().err) == (not concurrent)


def test_hooks_that_keep_something_see_one_trial_at_a_time(tmp_path, capsys):
    seen = []

    def rated(hp):
        model = toys.softmax()
        model.optimizer.learning_rate = hp.Float("lr", 0.01, 0.1)
        return model

    class Own(ours.RandomSearch):
        def on_trial_begin(self, trial):
            self.now = trial.trial_id

        def on_trial_end(self, trial):
            seen.append(self.now == trial.trial_id)
            super().on_trial_end(trial)

    tuner = Own(rated, "val_loss", max_trials=3, directory=tmp_path)
    tuner.search(**{**DATA, "verbose": 1})
    assert seen == [True] * 3
    assert "one at a time: Own.on_trial_begin() changes 'self.now'" in capsys.readouterr().err


def test_a_hypermodel_of_its_own_fit_trains_together(tmp_path, capsys):
    tuner = ours.RandomSearch(hypermodel_of(ours), "val_loss", max_trials=2, directory=tmp_path)
    tuner.search(**{**DATA, "verbose": 1})
    assert "one at a time" not in capsys.readouterr().err


def test_a_hyperparameter_that_is_declared_after_training_is_searched(kt, tmp_path):
    """As by fine-tuning in two phases: the whole grid is walked."""

    class TwoPhases(kt.HyperModel):
        def build(self, hp: Any) -> Any:
            hp.Choice("units", [2, 4])
            return toys.compiled(toys.softmax())

        def fit(self, hp: Any, model: Any, x: Any, y: Any, **given: Any) -> Any:
            model.fit(x, y, **given)
            model.optimizer.learning_rate = hp.Choice("later", [0.1, 0.01, 0.001])
            return model.fit(x, y, **given)

    tuner = kt.GridSearch(TwoPhases(), "val_loss", directory=tmp_path)
    tuner.search(X, Y, validation_data=(X, Y), verbose=0)
    values = [trial.hyperparameters.values for trial in tuner.oracle.trials.values()]
    assert {(each["units"], each["later"]) for each in values} == {
        (units, later) for units in (2, 4) for later in (0.1, 0.01, 0.001)
    }


def test_a_hook_that_reads_results_sees_those_of_all_trials_before(kt, tmp_path):
    known: list[int] = []

    class Compares(kt.RandomSearch):
        def on_epoch_end(self, trial: Any, model: Any, epoch: int, logs: Any = None) -> None:
            super().on_epoch_end(trial, model, epoch, logs)
            if epoch == 0:
                known.append(len(self.oracle.get_best_trials(9)))

    tuner = Compares(spaces.small, "val_loss", max_trials=3, directory=tmp_path, seed=1)
    tuner.search(X, Y, validation_data=(X, Y), epochs=2, verbose=0)
    assert known == [1, 2, 3]  # the trial under way has a score after its epoch
