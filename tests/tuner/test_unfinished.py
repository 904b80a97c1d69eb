"""However a search ends, the best epoch of any trial counts: that of an unfinished trial, too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import keras
import optuna
import pytest

import paceline
import toys
from commands import command
from epoch_reports import observe_reports
from paceline.executor.training.planner import cores
from paceline.executor.training.rounds import PackRounds
from paceline.pack.plan import VectorizedProgram
from paceline.tuner.checkpoint.best_models import TrainedModels
from paceline.tuner.search.loop import SearchLoop
from stopping import hears_signals, stopped_after, times_out  # noqa: F401

X, Y = toys.data()
HELD_OUT = toys.data(23, seed=1)
CALL: dict[str, Any] = {**toys.CALL, "validation_data": HELD_OUT, "epochs": 9, "verbose": 0}


@pytest.fixture
def make(fresh_folder: Path):
    def tuner(**arguments: Any) -> paceline.Tuner:
        settings: dict[str, Any] = {"study": "s", "parallel_trials": 4, "objective": "val_loss"}
        return paceline.Tuner(toys.dense, on_note=lambda text: None, **(settings | arguments))

    return tuner


def score(model: keras.Model) -> float:
    return model.evaluate(*HELD_OUT, verbose=0, return_dict=True)["loss"]


def is_best(tuner: paceline.Tuner, state: str) -> None:
    """The best trial is the one with the lowest loss in any epoch, and its model is of that epoch.

    1e-5: packed validation sums in another order than ``evaluate``.
    """
    table = tuner.results()
    best = tuner.best_trial
    assert best.state == state
    assert best.value == table["value"].min()
    assert best.number == table["value"].idxmin()
    assert score(tuner.best_model()) == pytest.approx(best.value, rel=1e-5)


@pytest.mark.parametrize("sampler", ["random", "tpe"])  # packs that stream, and rounds
def test_a_search_that_ends_by_time_before_any_trial_does_has_a_model(make, monkeypatch, sampler):
    with monkeypatch.context() as patch:
        epochs = observe_reports(patch)
        times_out(patch, lambda: len(epochs) >= 8)
        tuner = make(sampler=sampler, pruner="none")
        tuner.search(X, Y, n_trials=100_000, timeout=1000.0, **{**CALL, "epochs": 2000})
    assert set(tuner.results()["state"]) == {"running"}
    is_best(tuner, "running")
    assert tuner.summary()["best"]["state"] == "running"
    is_best(make(), "running")  # read from the storage, as another process does


@pytest.mark.slow
def test_a_search_in_fit_that_ends_by_time_has_a_model(make, monkeypatch):
    with monkeypatch.context() as patch:
        epochs = observe_reports(patch)
        times_out(patch, lambda: len(epochs) >= 3)
        tuner = make(executor="fit")
        tuner.search(X, Y, n_trials=8, timeout=1000.0, **CALL)
    is_best(tuner, "running")


@pytest.mark.slow
def test_so_has_one_that_its_progress_stops(make, monkeypatch):
    epochs = observe_reports(monkeypatch)
    tuner = make(sampler="tpe", on_progress=lambda now: len(epochs) < 8)
    tuner.search(X, Y, n_trials=8, **{**CALL, "epochs": 2000})
    is_best(tuner, "running")


@pytest.mark.usefixtures("hears_signals")
def test_so_has_one_that_is_interrupted(make, monkeypatch):
    stopped_after(monkeypatch, 3)
    tuner = make(sampler="tpe")
    with pytest.raises(KeyboardInterrupt, match="^$"):
        tuner.search(X, Y, n_trials=8, **{**CALL, "epochs": 2000})
    is_best(tuner, "running")


def test_trials_that_wait_for_their_promotion_count(make, monkeypatch):
    """Each trial but the first trains one epoch, and none is promoted before time is up."""
    with monkeypatch.context() as patch:
        epochs = observe_reports(patch)
        times_out(patch, lambda: len(epochs) >= 4)
        tuner = make(pruner="asha:1:9")
        tuner.search(X, Y, n_trials=100_000, timeout=1000.0, **CALL)
    assert "paused" in set(tuner.results()["state"])
    assert tuner.best_trial.state in ("paused", "running")  # the best one goes on at once
    is_best(tuner, tuner.best_trial.state)


def test_a_trial_that_was_pruned_after_its_best_epoch_is_the_best(make):
    class Pruner(optuna.pruners.BasePruner):
        """Prunes the first trial after its fourth epoch, and no other."""

        def prune(self, study: Any, trial: Any) -> bool:
            return trial.number == 0 and trial.last_step >= 4

    tuner = make(pruner=Pruner(), sampler="random")
    tuner.enqueue({"lr": 0.03, "dropout": 0.1})
    for _ in range(3):
        tuner.enqueue({"lr": 1e-3, "dropout": 0.5})
    tuner.search(X, Y, n_trials=4, **CALL)
    assert tuner.best_trial.number == 0
    is_best(tuner, "pruned")


def test_a_trial_that_fails_later_is_no_best(make):
    """Its loss is not a number from some epoch on; what it had before is not counted."""
    tuner = make(sampler="random", parallel_trials=1)
    tuner.enqueue({"lr": 0.01, "dropout": 0.1})
    tuner.enqueue({"lr": 0.02, "dropout": 0.1})

    class Breaks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 3 and float(self.model.optimizer.learning_rate) < 0.015:
                self.model.layers[0].kernel.assign(self.model.layers[0].kernel * float("nan"))

    tuner.search(X, Y, n_trials=2, callbacks=[Breaks()], **CALL)
    assert list(tuner.results()["state"]) == ["failed", "complete"]
    is_best(tuner, "complete")


def test_what_was_reached_stays_when_the_search_goes_on(make, monkeypatch):
    with monkeypatch.context() as patch:
        epochs = observe_reports(patch)
        times_out(patch, lambda: len(epochs) >= 8)
        stopped = make(sampler="random", pruner="none")
        stopped.search(X, Y, n_trials=4, timeout=1000.0, **{**CALL, "epochs": 30})
    whole = make(study="whole", sampler="random")
    whole.search(X, Y, n_trials=4, **{**CALL, "epochs": 30})
    tuner = make(sampler="random")
    tuner.search(X, Y, n_trials=4, **{**CALL, "epochs": 30})
    assert list(tuner.results()["value"]) == list(whole.results()["value"])
    is_best(tuner, "complete")
    names = [path.name for path in Path("runs/s/best").glob("trial-*")]
    assert names == [f"trial-{tuner.best_trial.number}-epoch-{tuner.best_trial.best_epoch}.keras"]


@pytest.mark.slow
def test_models_of_trials_that_begin_again_as_others_take_no_place(make, monkeypatch):
    """Without a checkpoint nothing goes on with them: they have failed."""
    with monkeypatch.context() as patch:
        epochs = observe_reports(patch)
        times_out(patch, lambda: len(epochs) >= 40)
        stopped = make(pruner="none")
        stopped.search(X, Y, n_trials=4, timeout=1000.0, **{**CALL, "epochs": 2000})
    assert list(Path("runs/s/best").glob("trial-*"))
    shutil.rmtree("runs/s/checkpoints")
    tuner = make()
    tuner.search(X, Y, n_trials=4, **{**CALL, "epochs": 2})
    assert set(tuner.results()["state"]) == {"failed", "complete"}
    is_best(tuner, "complete")
    is_best(make(), "complete")


def test_without_any_epoch_there_is_no_best(make):
    tuner = make()
    tuner.search(X, Y, n_trials=4, timeout=1e-6, **CALL)
    with pytest.raises(paceline.StudyError, match="no trial of 's' has been validated"):
        tuner.best_trial  # noqa: B018
    with pytest.raises(paceline.StudyError, match="no trial of 's' has been validated"):
        tuner.best_model()


def test_a_process_that_dies_leaves_the_model_that_was_saved(make, monkeypatch):
    """Models are saved now and then while a search runs, those of running trials too."""
    monkeypatch.setattr(TrainedModels, "EVERY", 0.0)
    epochs = observe_reports(monkeypatch)

    def saved() -> bool:
        return len(epochs) > 8 and any(Path("runs/s/best").glob("*.keras"))

    tuner = make(sampler="tpe", on_progress=lambda now: not saved())
    run = SearchLoop.run

    def run_and_die(self: SearchLoop) -> None:
        run(self)
        monkeypatch.setattr(TrainedModels, "save", lambda self, note: None)

    monkeypatch.setattr(SearchLoop, "run", run_and_die)
    tuner.search(X, Y, n_trials=8, **{**CALL, "epochs": 2000})
    found = json.loads(Path("runs/s/best/manifest.json").read_text())
    ((number, entry),) = found.items()
    model = keras.models.load_model(Path("runs/s/best") / entry["file"])
    assert score(model) == pytest.approx(entry["value"], rel=1e-5)
    assert tuner.trial(int(number)).history["val_loss"][entry["epoch"] - 1] == entry["value"]


def test_commands_say_what_the_best_trial_is(make, monkeypatch, capsys):
    def out(*words: str) -> str:
        assert command(*words) == 0
        return capsys.readouterr().out

    with monkeypatch.context() as patch:
        epochs = observe_reports(patch)
        times_out(patch, lambda: len(epochs) >= 8)
        tuner = make()
        tuner.search(X, Y, n_trials=8, timeout=1000.0, **{**CALL, "epochs": 2000})
    best = tuner.best_trial
    where = f"epoch {best.best_epoch} of {best.epochs}, unfinished"
    capsys.readouterr()
    assert f"trial {best.number}, {where}" in out("best", "s")
    assert json.loads(out("best", "s", "--json"))["state"] == "running"
    assert where in out("export", "s", "-o", "best.keras")
    assert score(keras.models.load_model("best.keras")) == pytest.approx(best.value, rel=1e-5)
    assert "* best val_loss" in out("trials", "s")
    out("report", "s")
    page = Path("report.html").read_text(encoding="utf-8")
    assert f"Trial {best.number} has the lowest val_loss" in page
    assert "it is unfinished" in page
    assert "unfinished</td>" in page


@pytest.mark.slow
def test_where_time_may_end_a_search_few_programs_wait_for_their_turn(make, monkeypatch):
    """ASHA asks for a new trial whenever one pauses, and each has a structure of its own."""

    def structures(hp: Any) -> keras.Model:
        width = hp.Int("width", 2, 200)
        hidden = keras.layers.Dense(width, activation="relu")
        softmax = keras.layers.Dense(toys.CLASSES, activation="softmax")
        model = keras.Sequential([keras.Input((toys.FEATURES,)), hidden, softmax])
        return toys.compiled(model)

    waiting: list[int] = []
    train = PackRounds.train

    def watched(self: PackRounds, *arguments: Any, **named: Any) -> None:
        train(self, *arguments, **named)
        groups = self.grouper.groups
        asked = [g for g in groups if g.active and g.program is not None and not g.n_live]
        waiting.append(sum(not any(t.epoch for t in group.queue) for group in asked))

    monkeypatch.setattr(PackRounds, "train", watched)
    tuner = paceline.Tuner(
        structures, "val_loss", "s", share_widths=False, pruner="asha", on_note=lambda text: None
    )
    tuner.search(X, Y, n_trials=8, timeout=1000.0, **CALL)
    assert tuner.summary()["programs"]["distinct"] == 8
    assert max(waiting) <= max(2, cores())


def test_time_is_up_while_the_search_waits_for_a_compiler(make, monkeypatch):
    """It ends at once, and the next search begins the round that waited anew."""

    def two_programs(hp: Any) -> keras.Model:
        return toys.dense_with(hp, hp.Choice("activation", ["relu", "tanh"]))

    programs: list[int] = []
    waited = [0]

    def ready(program: VectorizedProgram) -> bool:
        if id(program) not in programs:
            programs.append(id(program))
        waited[0] += (late := programs.index(id(program)) > 0)
        return not late and is_ready(program)

    call = {**CALL, "epochs": 3}
    with monkeypatch.context() as patch:
        is_ready = VectorizedProgram.ready
        patch.setattr(VectorizedProgram, "ready", ready)
        times_out(patch, lambda: waited[0] > 3)
        tuner = paceline.Tuner(
            two_programs, "val_loss", "s", share_widths=False, on_note=lambda text: None
        )
        for at, activation in enumerate(["relu"] * 4 + ["tanh"]):
            tuner.enqueue({"activation": activation, "lr": 0.01 + at / 1000})
        tuner.search(X, Y, n_trials=5, timeout=1000.0, **call)
    assert list(tuner.results()["state"]) == [*["complete"] * 4, "running"]
    assert tuner.summary()["ended"]["by"] == "timeout"
    is_best(tuner, "complete")
    again = paceline.Tuner(
        two_programs, "val_loss", "s", share_widths=False, on_note=lambda text: None
    )
    again.search(X, Y, n_trials=5, timeout=1000.0, **call)
    assert list(again.results()["state"]) == ["complete"] * 5
