"""``paceline ensemble``: the kept models of a study as one, written by the command line."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest

import toys

SEARCH = ("search", "model.py", "--epochs", "2", "--trials", "4", "--keep-best", "3", "--quiet")


def test_an_ensemble_of_a_study_is_written_and_loaded(paceline, user_modules) -> None:
    Path("model.py").write_text(toys.MODEL_FILE)
    assert paceline(*SEARCH).code == 0
    done = paceline("ensemble", "model", "--models", "3", "-o", "three.keras")
    assert done.code == 0, done.err
    assert "three.keras: the ensemble" in done.out
    assert "ensemble of trials" in done.err and "were not used for the selection" in done.err
    x, _ = toys.data(23, seed=1)
    model = keras.models.load_model("three.keras")
    assert model.predict(x, verbose=0).shape == (23, toys.CLASSES)
    assert not list(Path().glob(".tmp-*"))


@pytest.mark.slow
def test_a_study_that_goes_on_still_keeps_as_many_models(paceline, user_modules) -> None:
    Path("model.py").write_text(toys.MODEL_FILE)
    assert paceline(*SEARCH).code == 0
    assert paceline("resume", "model", "--trials", "+2", "--quiet").code == 0
    assert len(list(Path("runs/model/best").glob("trial-*.keras"))) == 3


@pytest.mark.parametrize(
    ("search", "words", "said"),
    [
        (("--trials", "2"), (), "`paceline search --keep-best 10`"),
        (("--trials", "2"), ("-o", "three.h5"), "-o must end in .keras"),
        (
            ("--trials", "2", "--folds", "2", "--keep-best", "2"),
            (),
            "study 'model' has folds, and an ensemble needs validation data",
        ),
    ],
)
def test_what_cannot_be_an_ensemble_is_one_error(
    paceline, user_modules, search, words, said
) -> None:
    Path("model.py").write_text(toys.MODEL_FILE)
    assert paceline("search", "model.py", "--epochs", "1", *search, "--quiet").code == 0
    done = paceline("ensemble", "model", *words)
    assert done.code == 2 and said in done.err
    assert not list(Path().glob("*.keras"))
