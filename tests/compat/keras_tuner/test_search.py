"""The same user code on both sides: names, shapes, files and tables come out alike."""

from __future__ import annotations

import contextlib
import io
import json
import re
import warnings
from dataclasses import dataclass
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
DATA = {"x": X, "y": Y, "validation_data": (X, Y), "epochs": 2, "batch_size": 25}


@dataclass
class Ran:
    """What one side has done."""

    kt: Any
    tuner: Any
    folder: Path
    printed: str
    space: str
    results: str


def printed(call: Any, *args: Any, **kwargs: Any) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        call(*args, **kwargs)
    return text.getvalue()


def user_code(kt: Any, folder: Path) -> Ran:
    """What the user wrote; ``kt`` is all that differs."""
    tuner = kt.RandomSearch(
        spaces.small,
        objective="val_accuracy",
        max_trials=2,
        executions_per_trial=2,
        seed=5,
        directory=folder,
        project_name="first",
        overwrite=True,
    )
    space = printed(tuner.search_space_summary)
    log = printed(tuner.search, X, Y, epochs=2, batch_size=25, validation_data=(X, Y), verbose=1)
    return Ran(kt, tuner, folder / "first", log, space, printed(tuner.results_summary))


@pytest.fixture(scope="module")
def there(theirs, tmp_path_factory) -> Ran:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return user_code(theirs, tmp_path_factory.mktemp("theirs"))


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Ran:
    return user_code(ours, tmp_path_factory.mktemp("ours"))


def shape(text: str) -> list[str]:
    """A printed text without numbers of training, progress bars, and the order of trials."""
    text = re.sub(r"Trial \d+ - Epoch [^\n]*", "", text)
    text = re.sub(r"\x1b\[[0-9;]*m|[^\n]*[━\b][^\n]*|Epoch \d+/\d+", "", text)
    text = text.replace("\x1b[2K", "")  # KerasTuner clears the line where IPython is installed
    text = re.sub(r"\d\dh \d\dm \d\ds", "TIME", text)
    text = re.sub(r"((?:Score|val_accuracy|So Far): )[\d.]+", r"\1NUMBER", text)
    return [line.rstrip() for line in text.splitlines() if line.strip()]


@pytest.mark.slow
def test_the_same_trials_are_tried(here, there):
    mine, yours = here.tuner.oracle.trials, there.tuner.oracle.trials
    assert list(mine) == list(yours) == ["0", "1"]
    for trial_id, trial in mine.items():
        assert trial.hyperparameters.values == yours[trial_id].hyperparameters.values
        assert trial.status == yours[trial_id].status == "COMPLETED"


def test_metrics_have_the_same_names_and_shapes(here, there):
    for trial_id, mine in here.tuner.oracle.trials.items():
        yours = there.tuner.oracle.get_trial(trial_id)
        assert set(mine.metrics.metrics) == set(yours.metrics.metrics)
        for name in mine.metrics.metrics:
            assert len(mine.metrics.get_history(name)) == len(yours.metrics.get_history(name)) == 1
            assert mine.metrics.get_direction(name) == yours.metrics.get_direction(name)
            assert set(mine.metrics.get_statistics(name)) == set(yours.metrics.get_statistics(name))
        assert mine.score == mine.metrics.get_best_value("val_accuracy")
        assert isinstance(mine.best_step, int) and 0 <= mine.best_step < 2


def test_the_space_is_printed_alike(here, there):
    assert here.space == there.space
    assert "units (Int)\n{'default': None" in here.space


def test_the_results_are_printed_alike(here, there):
    mine, yours = shape(here.results), shape(there.results)
    assert [line.replace(str(here.folder), "DIR") for line in sorted(mine)] == [
        line.replace(str(there.folder), "DIR") for line in sorted(yours)
    ]
    assert mine[2:4] == [
        "Showing 10 best trials",
        'Objective(name="val_accuracy", direction="max")',
    ]
    scores = [float(score) for score in re.findall(r"Score: ([\d.]+)", here.results)]
    assert len(scores) == 2 and scores == sorted(scores, reverse=True)


def test_the_search_tells_of_its_trials_alike(here, there):
    # Ours runs them at once: the same lines in another order. The best value so far is another.
    def lines(ran: Ran) -> list[str]:
        rows = [re.sub(r"\|.{18}\|", "|", line) for line in shape(ran.printed)]
        return sorted(rows)

    assert lines(here) == lines(there)
    assert "Search: Running Trial #1\n\nValue             |Best Value So Far |Hyper" in here.printed


def test_every_epoch_is_told_in_a_line(here):
    lines = re.findall(r"^Trial (\d) - Epoch (\d)/2 - (.*)$", here.printed, re.MULTILINE)
    assert sorted(line[:2] for line in lines) == [("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")]
    names = {"accuracy", "loss", "val_accuracy", "val_loss"}
    for line in lines:
        assert {part.partition(": ")[0] for part in line[2].split(" - ")} == names


@pytest.mark.slow
def test_a_warning_of_every_build_is_shown_once(tmp_path):
    def build(hp: Any) -> Any:
        layers = [keras.layers.Dense(toys.CLASSES, "softmax", input_shape=(toys.FEATURES,))]
        return toys.compiled(keras.Sequential(layers), hp.Float("lr", 1e-3, 1e-2))

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        tuner = ours.RandomSearch(build, "val_loss", max_trials=4, seed=1, directory=tmp_path)
        tuner.search(**{**DATA, "verbose": 0})
    texts = [str(warning.message) for warning in shown]
    assert sum("Do not pass an `input_shape`" in text for text in texts) == 1, texts


def test_the_project_has_the_same_files(here, there):
    def files(folder: Path) -> set[str]:
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}

    oracle = here.tuner.oracle  # KerasTuner's has the two names as well, and None in both
    assert (oracle.directory, oracle.project_name) == (here.folder.parent, "first")
    assert files(here.folder) == files(there.folder)
    for name in ("oracle.json", "trial_0/trial.json", "trial_0/build_config.json"):
        mine = json.loads((here.folder / name).read_text())
        yours = json.loads((there.folder / name).read_text())
        assert mine.keys() == yours.keys()
    assert mine == yours


def test_best_models_have_their_scores(here):
    best = here.tuner.oracle.get_best_trials(2)
    models = here.tuner.get_best_models(2)
    for trial, model in zip(best, models, strict=True):
        assert model.predict(X[:3], verbose=0).shape == (3, toys.CLASSES)
        # The weights of the better execution; the score is the mean of both.
        assert model.evaluate(X, Y, verbose=0)[1] >= trial.score - 1e-6
        assert float(model.optimizer.learning_rate) == pytest.approx(trial.hyperparameters["lr"])


def test_the_score_is_the_mean_of_each_execution_s_best(tmp_path):
    tuner = ours.RandomSearch(
        spaces.small, "val_loss", max_trials=1, seed=2, directory=tmp_path, executions_per_trial=3
    )
    tuner.search(**{**DATA, "epochs": 3, "verbose": 0})
    (trial,) = tuner.oracle.trials.values()
    model = tuner.load_model(trial)
    # The best of three is no worse than their mean, and is what the weights give.
    assert model.evaluate(X, Y, verbose=0)[0] < trial.score


def test_best_hyperparameters_build_the_best_model(here):
    (best,) = here.tuner.get_best_hyperparameters()
    assert isinstance(best, ours.HyperParameters)
    model = here.tuner.hypermodel.build(best)
    assert model.layers[0].units == best.get("units")
    assert len(here.tuner.get_best_hyperparameters(5)) == 2
    assert here.tuner.remaining_trials == 0


def test_grid_search_finds_the_same_best_hyperparameters(kt, tmp_path):
    def build(hp: Any) -> Any:
        # All begin with the same loss, and only one of the four combinations can learn anything.
        lr = hp.Choice("lr", [0.0, 0.1])
        dense = keras.layers.Dense(toys.CLASSES, kernel_initializer="zeros")
        scale = keras.layers.Rescaling(hp.Choice("scale", [0.0, 1.0]))
        model = keras.Sequential([keras.Input((toys.FEATURES,)), dense, scale])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(lr), loss)
        return model

    tuner = kt.GridSearch(build, "val_loss", directory=tmp_path, project_name="grid")
    tuner.search(**DATA, verbose=0)
    assert len(tuner.oracle.trials) == 4
    assert tuner.get_best_hyperparameters()[0].values == {"lr": 0.1, "scale": 1.0}
    values = [trial.hyperparameters.values for trial in tuner.oracle.trials.values()]
    assert [(each["lr"], each["scale"]) for each in values] == [(0, 0), (0, 1), (0.1, 0), (0.1, 1)]


@pytest.fixture(scope="module")
def banded(tmp_path_factory) -> Any:
    tuner = ours.Hyperband(
        spaces.small,
        "val_loss",
        max_epochs=4,
        factor=2,
        seed=1,
        directory=tmp_path_factory.mktemp("band"),
        project_name="band",
    )
    tuner.search(X, Y, validation_data=(X, Y), batch_size=25, verbose=0)
    return tuner


def test_hyperband_trains_the_epochs_of_each_round(banded):
    trials = list(banded.oracle.trials.values())
    assert {trial.status for trial in trials} == {"COMPLETED"}
    told = [trial.hyperparameters.values for trial in trials]
    assert {(v["tuner/initial_epoch"], v["tuner/epochs"]) for v in told} == {
        (0, 1),
        (1, 2),
        (2, 4),
        (0, 2),
        (0, 4),
    }
    assert banded.remaining_trials == 0


def test_hyperband_goes_on_with_the_weights_of_the_trial_before(banded):
    for trial in banded.oracle.trials.values():
        parent = trial.hyperparameters.values.get("tuner/trial_id")
        if parent is None:
            continue
        before = banded.oracle.get_trial(parent)
        names = ("units", "dropout", "lr")
        assert [trial.hyperparameters[n] for n in names] == [
            before.hyperparameters[n] for n in names
        ]
        # What was reached is where it begins: a fresh start would not be this close after an epoch.
        assert trial.score < before.score + 0.1
    promoted = [t for t in banded.oracle.trials.values() if "tuner/trial_id" in t.hyperparameters]
    assert promoted
    (first,) = banded.get_best_models()
    best = banded.oracle.get_best_trials()[0]
    assert first.evaluate(X, Y, verbose=0)[0] == pytest.approx(best.score, rel=1e-4)


def test_a_study_is_made_of_hyperband_s_trials(banded):
    name = paceline.from_keras_tuner(banded.project_dir, objective="val_loss")
    results = paceline.Tuner(spaces.small, study=name).results()
    assert list(results["value"]) == [t.score for t in banded.oracle.trials.values()]
    assert not any(column.startswith("tuner/") for column in results)


@pytest.mark.slow
def test_bayesian_optimization_searches(tmp_path):
    tuner = ours.BayesianOptimization(
        spaces.small, "val_loss", max_trials=6, num_initial_points=3, directory=tmp_path, seed=1
    )
    tuner.search(**DATA, verbose=0)
    assert [trial.status for trial in tuner.oracle.trials.values()] == ["COMPLETED"] * 6


def test_overridden_hyperparameters_stand(kt, tmp_path):
    hp = kt.HyperParameters()
    hp.Fixed("lr", 0.02)
    hp.Float("dropout", 0.3, 0.4)
    tuner = kt.RandomSearch(
        spaces.small,
        "val_loss",
        max_trials=2,
        hyperparameters=hp,
        tune_new_entries=False,
        seed=1,
        directory=tmp_path,
    )
    tuner.search(**{**DATA, "epochs": 1}, verbose=0)
    for trial in tuner.oracle.trials.values():
        values = trial.hyperparameters.values
        assert values["lr"] == 0.02
        assert 0.3 <= values["dropout"] <= 0.4
        assert values["units"] == 4  # the default of what is new
        assert float(tuner.load_model(trial).optimizer.learning_rate) == pytest.approx(0.02)


def test_new_entries_are_refused_where_they_are_not_allowed(kt, tmp_path):
    hp = kt.HyperParameters()
    hp.Choice("lr", [0.1])
    with pytest.raises(RuntimeError, match="`allow_new_entries` is `False`, but found new entries"):
        kt.RandomSearch(
            spaces.small,
            "val_loss",
            hyperparameters=hp,
            allow_new_entries=False,
            directory=tmp_path,
        )


def test_compile_arguments_and_model_size_of_the_tuner(kt, tmp_path):
    tuner = kt.RandomSearch(
        spaces.small,
        "val_loss",
        max_trials=2,
        optimizer=keras.optimizers.SGD(0.5),
        max_model_size=65,
        seed=1,
        directory=tmp_path,
        max_consecutive_failed_trials=5,
    )
    tuner.search(**{**DATA, "epochs": 1}, verbose=0)
    sizes = {4: "COMPLETED", 8: "FAILED"}  # 43 and 83 numbers
    for trial in tuner.oracle.trials.values():
        assert trial.status == sizes[trial.hyperparameters["units"]]
        if trial.status == "FAILED":
            assert "Oversized model: 83 parameters" in trial.message
        else:
            model = tuner.load_model(trial)
            assert isinstance(model.optimizer, keras.optimizers.SGD)
            assert float(model.optimizer.learning_rate) == 0.5


def test_trials_train_in_packs(tmp_path, monkeypatch):
    def no_fit(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a trial went to fit")

    monkeypatch.setattr("paceline.executor.fit.FitExecutor.advance", no_fit)
    tuner = ours.RandomSearch(
        spaces.small, "val_loss", max_trials=4, executions_per_trial=2, directory=tmp_path
    )
    tuner.search(**DATA, verbose=0)
    assert len(tuner.oracle.end_order) == 4


def test_arguments_that_fit_does_not_have_are_refused(tmp_path):
    tuner = ours.RandomSearch(spaces.small, "val_loss", max_trials=1, directory=tmp_path)
    with pytest.raises(TypeError, match="nonsense"):
        tuner.search(X, Y, nonsense=1)


def test_nothing_of_the_process_is_changed(tmp_path):
    np.random.seed(3)
    before = np.random.get_state()[1].tolist()
    tuner = ours.RandomSearch(spaces.small, "val_loss", max_trials=1, directory=tmp_path)
    tuner.search(**DATA, verbose=0)
    tuner.get_best_models()
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize(
    "own",
    [
        pytest.param(False, marks=pytest.mark.slow, id="plain"),
        pytest.param(True, id="with a fit of its own"),
    ],
)
def test_a_seed_gives_the_same_scores_again(own, tmp_path):
    class Own(ours.HyperModel):
        def build(self, hp: Any) -> Any:
            return spaces.small(hp)

        def fit(self, hp: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            return model.fit(*args, **kwargs)

    scores = []
    for folder in "ab":
        tuner = ours.RandomSearch(
            Own() if own else spaces.small,
            "val_loss",
            max_trials=2,
            seed=9,
            directory=tmp_path,
            project_name=folder,
        )
        tuner.search(**DATA, verbose=0)
        scores.append([trial.score for trial in tuner.oracle.trials.values()])
    assert scores[0] == scores[1]
    assert scores[0][0] != scores[0][1]


@pytest.mark.slow
def test_an_optimizer_of_the_tuner_leaves_a_loss_of_the_user_s(tmp_path):
    def own_loss(y: Any, predicted: Any) -> Any:
        return keras.losses.sparse_categorical_crossentropy(y, predicted) + 1.0

    def own_metric(y: Any, predicted: Any) -> Any:
        return keras.ops.mean(predicted)

    def search(own: list[Any], **kwargs: Any) -> Any:
        def build(hp: Any) -> Any:
            model = spaces.small(hp)
            model.compile("adam", own_loss, metrics=own)
            return model

        tuner = ours.RandomSearch(
            build, "val_loss", 1, directory=tmp_path, overwrite=True, optimizer="sgd", **kwargs
        )
        tuner.search(**{**DATA, "epochs": 1}, verbose=0)
        return tuner

    tuner = search(["accuracy"])
    assert tuner.oracle.get_trial("0").score > 1.0
    assert "val_accuracy" in tuner.oracle.get_trial("0").metrics.metrics
    with pytest.raises(ours.errors.FatalValueError, match="to the tuner, too, as `metrics"):
        search([own_metric])
    tuner = search([own_metric], metrics=["accuracy"])
    assert "val_accuracy" in tuner.oracle.get_trial("0").metrics.metrics


def test_a_model_that_is_not_compiled_takes_what_the_tuner_has(tmp_path):
    def build(hp: Any) -> Any:
        hp.Float("x", 0, 1)
        layers = [keras.Input((toys.FEATURES,)), keras.layers.Dense(toys.CLASSES, "softmax")]
        return keras.Sequential(layers)

    tuner = ours.RandomSearch(
        build,
        "val_accuracy",
        max_trials=1,
        directory=tmp_path,
        optimizer="sgd",
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    tuner.search(**{**DATA, "epochs": 1}, verbose=0)
    assert tuner.oracle.get_trial("0").status == "COMPLETED"


@pytest.mark.slow
@pytest.mark.parametrize("hyperband", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_layers_made_outside_of_build_stay_as_the_user_left_them(hyperband, tmp_path):
    keras.utils.set_random_seed(2)
    backbone = keras.Sequential([keras.Input((toys.FEATURES,)), keras.layers.Dense(8, "relu")])
    before = [np.array(weights) for weights in backbone.get_weights()]

    def build(hp: Any) -> keras.Model:
        if hp.Boolean("frozen"):
            backbone.trainable = False
        head = keras.layers.Dense(toys.CLASSES, "softmax")
        model = keras.Sequential([keras.Input((toys.FEATURES,)), backbone, head])
        return toys.compiled(model, hp.Float("rate", 0.01, 0.1))

    if hyperband:
        tuner: Any = ours.Hyperband(build, "val_loss", max_epochs=4, seed=1, directory=tmp_path)
    else:
        tuner = ours.RandomSearch(build, "val_loss", max_trials=5, seed=1, directory=tmp_path)
    tuner.search(**DATA, verbose=0)
    trials = tuner.oracle.trials.values()
    assert {trial.hyperparameters.get("frozen") for trial in trials} == {True, False}
    assert {trial.status for trial in trials} == {"COMPLETED"}
    trials = tuner.oracle.get_best_trials(2)
    models = tuner.get_best_models(2)
    for trial, model in zip(trials, models, strict=True):
        # Of two models at once each has its own weights, and is compiled as ``build`` compiles.
        assert model.evaluate(X, Y, verbose=0)[0] == pytest.approx(trial.score, abs=1e-5)
        assert len(model.trainable_variables) == 4 - 2 * trial.hyperparameters.get("frozen")
    for weights, was in zip(backbone.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weights, was)
    assert backbone.trainable
    assert all(variable.trainable for variable in backbone.variables)


def test_epochs_without_validation_are_no_best_ones(tmp_path):
    """KerasTuner's own trials fail there: it looks at the first epoch, which has no value."""
    tuner = ours.RandomSearch(spaces.small, "val_loss", max_trials=2, directory=tmp_path, seed=1)
    tuner.search(**DATA | {"epochs": 4}, validation_freq=2)
    for trial in tuner.oracle.trials.values():
        assert trial.status == "COMPLETED"
        assert trial.best_step in (1, 3)


def test_a_trial_without_the_objective_fails_with_what_it_has(tmp_path):
    data = {name: value for name, value in DATA.items() if name != "validation_data"}
    tuner = ours.RandomSearch(spaces.small, "val_loss", max_trials=4, directory=tmp_path, seed=1)
    with pytest.raises(Exception, match="val_loss"):
        tuner.search(**data)
    assert all(trial.status != "RUNNING" for trial in tuner.oracle.trials.values())


@pytest.mark.parametrize("where", ["object", "class"])
def test_methods_that_are_put_in_later_are_called(tmp_path, monkeypatch, where):
    tuner = ours.RandomSearch(spaces.small, "val_loss", max_trials=2, directory=tmp_path, seed=1)
    place = tuner if where == "object" else ours.RandomSearch
    monkeypatch.setattr(place, "run_trial", lambda *given, **more: 42.0)
    tuner.search(**DATA)
    assert [trial.score for trial in tuner.oracle.trials.values()] == [42.0, 42.0]


def test_hooks_that_share_what_they_change_see_one_trial_at_a_time(kt, tmp_path):
    seen: list[tuple[str, str]] = []

    class Notes(kt.RandomSearch):
        def on_trial_begin(self, trial: Any) -> None:
            super().on_trial_begin(trial)
            self.now = trial.trial_id

        def on_trial_end(self, trial: Any) -> None:
            super().on_trial_end(trial)
            seen.append((trial.trial_id, self.now))

    tuner = Notes(spaces.small, "val_loss", max_trials=3, directory=tmp_path, seed=1)
    tuner.search(**DATA)
    assert seen == [(number, number) for number in ("0", "1", "2")]


def test_callbacks_that_are_their_own_copies_are_not_shared_in_a_pack(kt, tmp_path):
    class Counts(keras.callbacks.Callback):
        n = 0

        def __deepcopy__(self, memo: Any) -> Any:
            return self

        def on_train_begin(self, logs: Any = None) -> None:
            self.n = 0

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.n += 1
            logs["n"] = self.n

    objective = kt.Objective("n", "max")
    tuner = kt.RandomSearch(spaces.small, objective, max_trials=3, directory=tmp_path, seed=1)
    tuner.search(**DATA | {"epochs": 3}, callbacks=[Counts()])
    assert [trial.score for trial in tuner.oracle.trials.values()] == [3, 3, 3]


class Subclassed(keras.Model):
    """A model whose parts learn their inputs from the data."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.hidden = keras.Sequential([keras.layers.Dense(units, activation="relu")])
        self.out = keras.layers.Dense(toys.CLASSES, activation="softmax")

    def call(self, x: Any) -> Any:
        return self.out(self.hidden(x))


def test_a_subclassed_model_goes_on_and_comes_back_with_its_weights(tmp_path):
    def build(hp: Any) -> keras.Model:
        model = Subclassed(3)
        sgd = keras.optimizers.SGD(hp.Float("lr", 1e-3, 1e-1))
        model.compile(sgd, "sparse_categorical_crossentropy")
        return model

    tuner = ours.Hyperband(build, "val_loss", max_epochs=3, seed=1, directory=tmp_path)
    tuner.search(X, Y, validation_data=(X, Y), verbose=0)
    trials = tuner.oracle.trials.values()
    assert any("tuner/trial_id" in trial.hyperparameters.values for trial in trials)
    assert {trial.status for trial in trials} == {"COMPLETED"}
    score = tuner.oracle.get_best_trials()[0].score
    assert tuner.get_best_models()[0].evaluate(X, Y, verbose=0) == pytest.approx(score, rel=1e-5)
