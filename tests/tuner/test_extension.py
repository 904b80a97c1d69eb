"""A study that has ended goes on: more trials, more epochs, and more epochs for the best."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import paceline
import toys
from as_optuna import optuna_study
from paceline.executor.training.reporting import EpochReporter
from paceline.study.trials.table import trials_to_continue
from paceline.study.trials.trial import Trial
from stopping import hears_signals, stopped_after  # noqa: F401 - a fixture

X, Y = toys.data()
CALL: dict[str, Any] = {"validation_data": toys.data(23, seed=1), "batch_size": 16}


@pytest.fixture
def make(make: Callable[..., paceline.Tuner]) -> Callable[..., paceline.Tuner]:
    """As everywhere, one trial after another, and two models are kept."""
    return functools.partial(make, plan="sequential", keep_best=2)


@pytest.fixture(scope="module")
def long(tmp_path_factory) -> paceline.Tuner:
    """The same trials, trained for twice the epochs from the start."""
    tuner = paceline.Tuner(
        toys.dense,
        study="s",
        sampler="random",
        parallel_trials=2,
        plan="sequential",
        directory=tmp_path_factory.mktemp("long"),
        on_note=lambda text: None,
    )
    tuner.search(X, Y, epochs=8, n_trials=5, **CALL)
    return tuner


def ranked(tuner: paceline.Tuner) -> list[int]:
    results = tuner.results().sort_values(["value", "number"], ascending=[False, True])
    return results["number"].tolist()


def test_the_best_go_on_as_if_they_had_never_stopped(make, long, monkeypatch) -> None:
    """To the bit, and only the further epochs are trained: of two by what is kept of them."""
    make().search(X, Y, epochs=4, n_trials=5, **CALL)
    before = make().results()
    first = ranked(make())[:3]
    epochs: list[int] = []
    tell = EpochReporter.report_epoch
    monkeypatch.setattr(
        EpochReporter,
        "report_epoch",
        lambda self, *a: (epochs.append(len(a[2][0])), tell(self, *a))[1],
    )
    tuner = make()
    tuner.search(X, Y, epochs=8, continue_best=3, **CALL)
    results = tuner.results()
    assert results["continued_from"][5:].tolist() == first
    assert results["continued_from"][:5].isna().all()
    assert results["epochs"].tolist() == [4] * 5 + [8] * 3
    for source, trial in zip(first, map(tuner.trial, [5, 6, 7]), strict=True):
        assert trial.history == long.history(source)
        assert trial.value == long.trial(source).value
        assert trial.best_epoch == long.trial(source).best_epoch
        assert trial.seed == long.trial(source).seed
        assert trial.hparams == long.trial(source).hparams
    assert sum(epochs) == 4 + 4 + 8  # two went on, the third was trained again
    # What was there is as it was, and a storage shows whole curves.
    assert tuner.results()[:5][list(before)].equals(before)
    stored = optuna_study().trials[5]
    assert list(stored.intermediate_values.values()) == tuner.history(5)["val_accuracy"]
    assert stored.user_attrs["continued_from"] == first[0]
    # The best model is that of the trial with the best value, and is on disk.
    score = make().best_model().evaluate(*CALL["validation_data"], verbose=0, return_dict=True)
    assert score["accuracy"] == pytest.approx(make().best_trial.value, abs=1e-6)


@pytest.mark.slow
def test_trials_with_callbacks_go_on_as_if_they_had_never_stopped(make) -> None:
    """From their first epoch: what a callback has counted is not kept."""

    def search(study: str, epochs: int, **more: Any) -> paceline.Tuner:
        slower = keras.callbacks.ReduceLROnPlateau("loss", factor=0.1, patience=3, min_delta=0.05)
        tuner = make(study=study, on_note=notes.append)
        tuner.search(X, Y, epochs=epochs, callbacks=[slower], **CALL, **more)
        return tuner

    notes: list[str] = []
    whole = search("whole", 8, n_trials=3)
    search("s", 3, n_trials=3)
    tuner = search("s", 8, continue_best=2)
    for number in (3, 4):
        source = tuner.trial(number).continued_from
        assert tuner.trial(number).history == whole.trial(source).history
    assert sum("the state of its callbacks is not kept" in note for note in notes) == 2


def test_one_history_is_of_one_training(make) -> None:
    make().search(X, Y, epochs=2, n_trials=2, **CALL)
    before = make().results()
    others: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({}, {"batch_size": 5}, "batch_size 16 instead of 5"),
        ({}, {"shuffle": False}, "shuffle True instead of False"),
        ({}, {"validation_data": (X[:20], Y[:20])}, "other validation data"),
        ({"precision": "bfloat16"}, {}, "other numbers than mixed_bfloat16"),
    ]
    for arguments, other, told in others:
        with pytest.raises(paceline.UsageError, match=f"continue_best: .*{told}"):
            make(**arguments).search(X, Y, epochs=4, continue_best=1, **CALL | other)
        assert make().results().equals(before)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [1, 4])
def test_copies_go_on_from_what_is_kept_of_them_or_not_at_all(make, kept: int) -> None:
    notes: list[str] = []
    arguments = {"pruner": "pbt:2", "keep_best": kept, "on_note": notes.append}
    make(**arguments).search(X, Y, epochs=6, n_trials=4, **CALL)
    tuner = make(**arguments)
    results = tuner.results()
    ended = results[results["state"] == "complete"].sort_values(
        ["value", "number"], ascending=[False, True]
    )
    copies = results["continued_from"].notna()
    assert copies.any()
    best = ended["number"].tolist()[:2]
    tuner.search(X, Y, epochs=8, continue_best=2, **CALL)
    longer = tuner.results()[len(results) :]
    told = [note for note in notes if "a copy, is not continued" in note]
    gone_on = [int(number) for number in longer["continued_from"]]
    copied = [number for number in best if bool(copies[number])]
    if kept == 4:
        assert gone_on == best and not told
        for number in longer["number"]:
            source = tuner.trial(tuner.trial(int(number)).continued_from)
            assert tuner.trial(int(number)).history["loss"][:6] == source.history["loss"]
            # The same products, summed up in packs of another size.
            again = tuner.reproduce(int(number), X, Y, **CALL).history["loss"]
            np.testing.assert_allclose(again, tuner.trial(int(number)).history["loss"], rtol=1e-4)
    else:
        assert set(gone_on) | set(copied) == set(best)
        assert bool(told) == bool(set(copied) - set(gone_on))


@pytest.mark.slow
def test_once_more_and_new_ones_beside_them(make, long) -> None:
    make().search(X, Y, epochs=2, n_trials=4, **CALL)
    make().search(X, Y, epochs=4, continue_best=1, **CALL)
    tuner = make()
    tuner.search(X, Y, epochs=8, continue_best=1, n_trials=5, **CALL)
    results = tuner.results()
    assert results["epochs"].tolist() == [2, 2, 2, 2, 4, 8, 8]
    first = int(results["continued_from"][4])
    assert results["continued_from"][5] == 4
    assert tuner.history(5) == long.history(first)
    # The fifth configuration of the study, and a number of its own: those that go on do not count.
    assert results["continued_from"].isna()[6]
    assert results["seed"].nunique() == 5
    # Nothing is left to do: the same call again trains nothing, and says so.
    notes: list[str] = []
    again = make(on_note=notes.append)
    again.search(X, Y, epochs=8, continue_best=1, n_trials=5, **CALL)
    assert len(again.results()) == 7
    assert any("can continue: none is complete, or they already have 8 epochs" in n for n in notes)


@pytest.mark.slow
def test_interrupted_while_they_go_on(make, long) -> None:
    """Stopped by Ctrl-C, and gone on with by the same call, or by one that does not say so."""
    make().search(X, Y, epochs=4, n_trials=5, **CALL)
    first = ranked(make())[:3]
    for best in (3, None):  # once more, while the second goes on
        with pytest.MonkeyPatch.context() as patch:
            stopped_after(patch, 3)
            with pytest.raises(KeyboardInterrupt, match="^$"):
                make().search(X, Y, epochs=8, continue_best=best, n_trials=5, **CALL)
    tuner = make()
    tuner.search(X, Y, epochs=8, continue_best=3, n_trials=5, **CALL)
    assert tuner.results()["continued_from"].dropna().tolist() == first
    for source, number in zip(first, [5, 6, 7], strict=True):
        assert tuner.history(number) == long.history(source)


@pytest.mark.slow
def test_hyperband_gets_more_brackets(make) -> None:
    """KerasTuner cannot add iterations: a study of nine epochs goes on with twenty-seven."""
    make(pruner="hyperband", plan="vectorized").search(X, Y, epochs=3, n_trials=6, **CALL)
    tuner = make(pruner="hyperband", plan="vectorized")
    tuner.search(X, Y, epochs=9, n_trials="+12", **CALL)
    results = tuner.results()
    assert len(results) == 18
    assert results["epochs"][:6].max() <= 3
    assert results["epochs"][6:].max() == 9
    assert set(results["state"][6:]) == {"complete", "pruned"}


@pytest.mark.slow
def test_what_is_kept_on_disk_is_bounded(make) -> None:
    tuner = make(plan="vectorized", parallel_trials=4)
    sizes = []
    for n_trials in (3, 12, 24):
        tuner.search(X, Y, epochs=2, n_trials=n_trials, **CALL)
        files = [path for path in Path("runs/s").rglob("*") if path.is_file()]
        assert len(list(Path("runs/s/best").glob("*.keras"))) == 2
        assert len(list(Path("runs/s/ends").glob("*.safetensors"))) == 2
        assert not Path("runs/s/checkpoints").exists()
        # The journal and the record of slots grow by some lines for each trial.
        sizes.append(sum(p.stat().st_size for p in files if p.suffix not in (".log", ".jsonl")))
    assert max(sizes) <= 1.01 * min(sizes)


def test_who_goes_on() -> None:
    def trial(number: int, value: float, epochs: int = 4, **fields: Any) -> Trial:
        return Trial(number, "complete", value=value, epochs=epochs, **fields)

    trials = [
        trial(0, 0.5),
        trial(1, 0.9),
        trial(2, 0.9),
        trial(3, 0.95),
        trial(4, 0.96, 8, continued_from=3),
        Trial(5, "failed", continued_from=2),
        Trial(6, "pruned", value=0.99, epochs=1),
        Trial(7, "failed", error="x"),
    ]
    assert trials_to_continue(trials, 3, 8, "maximize") == [1, 2]
    assert trials_to_continue(trials, 2, 16, "maximize") == [4, 1]
    assert trials_to_continue(trials, 9, None, "minimize") == [0, 1, 2, 4]
    # Another worker has begun with two of the best three: they are not replaced by lesser ones.
    busy = [*trials, Trial(8, "running", continued_from=1), Trial(9, "paused", continued_from=4)]
    assert trials_to_continue(busy, 3, 16, "maximize") == [2]
    assert trials_to_continue(busy, 2, 16, "maximize") == []


@pytest.mark.parametrize("value", [0, -1, 1.5, "2"])
def test_what_is_no_number_of_trials(make, value) -> None:
    with pytest.raises(
        paceline.UsageError, match="continue_best must be a positive integer, got .*"
    ):
        make().search(X, Y, epochs=2, continue_best=value, **CALL)


def worsening(hp: Any) -> keras.Model:
    """A model whose rate is so large that its validation loss is best at first."""
    return toys.softmax_at(hp.Float("lr", 0.5, 0.9))


@pytest.mark.slow
def test_who_goes_on_to_no_better_value_has_the_model_of_its_source(make) -> None:
    settings: dict[str, Any] = {"objective": "min:val_loss", "keep_best": 2}
    make(worsening, **settings).search(X, Y, epochs=3, n_trials=3, **CALL)
    ranked = [trial.number for trial in make(worsening, **settings)._require_study().trials.ranked]
    make(worsening, **settings).search(X, Y, epochs=6, continue_best=3, **CALL)
    tuner = make(worsening, **settings)
    first, second = ranked[:2]
    goes_on = {tuner.trial(number).continued_from: number for number in (3, 4, 5)}
    assert tuner.trial(goes_on[first]).value == tuner.trial(first).value
    models = tuner.best_models(2)
    for model, number in zip(models, (first, second), strict=True):
        score = model.evaluate(*CALL["validation_data"], verbose=0, return_dict=True)
        assert score["loss"] == pytest.approx(tuner.trial(number).value, abs=1e-6)
    for number in (first, goes_on[first]):
        found = tuner.best_model(number=number).get_weights()
        for one, other in zip(found, models[0].get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
    tuner.ensemble(validation_data=CALL["validation_data"])
    with pytest.raises(paceline.StudyError, match="has 3 trials with a value of"):
        tuner.best_model(4)


@pytest.mark.slow
def test_epochs_before_the_initial_one_are_none_to_go_on_to(make) -> None:
    """Of six epochs after the second, four were trained: that is all of them."""
    call = {**CALL, "initial_epoch": 2}
    make().search(X, Y, epochs=6, n_trials=1, **call)
    notes: list[str] = []
    again = make(on_note=notes.append)
    again.search(X, Y, epochs=6, continue_best=1, **call)
    again.search(X, Y, epochs=lambda hp: 6, continue_best=1, **call)
    assert len(again.results()) == 1
    assert any("or they already have 4 epochs. Pass more epochs" in note for note in notes)
    assert any("trial 0 is not continued: it already has 4 epochs" in note for note in notes)
    longer, at_once = make(), make(study="long")
    longer.search(X, Y, epochs=8, continue_best=1, **call)
    at_once.search(X, Y, epochs=8, n_trials=1, **call)
    assert longer.history(1) == at_once.history(0)
