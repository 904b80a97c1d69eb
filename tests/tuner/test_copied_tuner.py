"""A tuner is its study: a pickle or a copy of it keeps the arguments and opens the study anew."""

from __future__ import annotations

import copy
import importlib.util
import pickle  # noqa: TID251 - of the test's own tuners
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest

import paceline
import toys
from marks import slow_where

X, Y = toys.data()
CALL: dict[str, Any] = {"validation_data": toys.data(23, seed=1), "epochs": 1, "batch_size": 25}


def searched(n: int = 2, **settings: Any) -> paceline.Tuner:
    given: dict[str, Any] = {"study": "s", "objective": "val_loss", "keep_best": 2}
    tuner = paceline.Tuner(toys.dense, **(given | settings))
    tuner.search(X, Y, n_trials=n, verbose=0, **CALL)
    return tuner


def pickled(tuner: paceline.Tuner) -> paceline.Tuner:
    return pickle.loads(pickle.dumps(tuner))


COPIES: list[Callable[[paceline.Tuner], paceline.Tuner]] = [pickled, copy.deepcopy, copy.copy]


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("storage", slow_where([None, "sqlite:///s.db"], bool))
def test_a_copy_knows_the_study_and_searches_on(copied: Any, storage: str | None) -> None:
    tuner = searched(storage=storage)
    again = copied(tuner)
    assert again.best_hparams == tuner.best_hparams
    assert again.best_model().count_params() == tuner.best_model().count_params()
    assert again.summary() == tuner.summary()
    again.search(X, Y, n_trials="+1", verbose=0, **CALL)
    assert len(again.results()) == 3


@pytest.mark.parametrize("copied", COPIES)
def test_a_tuner_that_has_not_searched_is_copied_with_what_it_was_told(copied: Any) -> None:
    tuner = paceline.Tuner(toys.dense, "val_loss", study="s", sampler="random")
    tuner.enqueue({"dropout": 0.25})
    again = copied(tuner)
    again.search(X, Y, n_trials=1, verbose=0, **CALL)
    assert again.trial(0).hparams["dropout"] == 0.25


@pytest.mark.slow
def test_another_process_reads_a_pickle(fresh_folder: Path) -> None:
    tuner = searched()
    Path("tuner.pickle").write_bytes(pickle.dumps(tuner))
    code = "import pickle; t = pickle.load(open('tuner.pickle', 'rb')); print(t.best_trial.number)"
    where = f"import sys; sys.path.insert(0, {str(Path(toys.__file__).parent)!r}); "
    done = subprocess.run(
        [sys.executable, "-c", where + code], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == tuner.best_trial.number


def test_a_callback_may_pickle_the_tuner_while_it_searches() -> None:
    tuner = paceline.Tuner(toys.dense, "val_loss", study="s", sampler="random")

    def note(epoch: int, logs: Any) -> None:
        assert pickle.loads(pickle.dumps(tuner)).name == "s"

    callback = keras.callbacks.LambdaCallback(on_epoch_end=note)
    tuner.search(X, Y, n_trials=1, callbacks=callback, **CALL)
    assert tuner.best_trial.state == "complete"


@pytest.mark.skipif(importlib.util.find_spec("cloudpickle") is None, reason="no cloudpickle")
def test_cloudpickle_takes_a_build_that_is_defined_here() -> None:
    import cloudpickle  # noqa: TID251

    def build(hp: Any) -> keras.Model:
        return toys.softmax_at(hp.Float("lr", 1e-3, 1e-1))

    tuner = paceline.Tuner(build, "val_loss", study="s", sampler="random")
    tuner.search(X, Y, n_trials=1, verbose=0, **CALL)
    assert pickle.loads(cloudpickle.dumps(tuner)).best_hparams == tuner.best_hparams
