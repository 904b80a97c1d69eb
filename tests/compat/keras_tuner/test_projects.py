"""Projects in both directions: theirs open here, ours open there; what is none says so."""

from __future__ import annotations

import copy
import json
import pickle  # noqa: TID251 - users pickle their tuners
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
import paceline.compat.keras_tuner as ours
import toys
from compat.keras_tuner import spaces
from paceline.compat.keras_tuner.engine.trial import Trial
from paceline.compat.keras_tuner.errors import ProjectError

X, Y = toys.data()
DATA = {"x": X, "y": Y, "validation_data": (X, Y), "epochs": 1, "batch_size": 25, "verbose": 0}


def tuner_of(kt: Any, folder: Path, max_trials: int, **kwargs: Any) -> Any:
    return kt.RandomSearch(
        spaces.small,
        "val_loss",
        max_trials=max_trials,
        seed=7,
        directory=folder.parent,
        project_name=folder.name,
        **kwargs,
    )


@pytest.fixture(scope="module")
def old(theirs, tmp_path_factory) -> Path:
    """A project that KerasTuner has written: 2 trials."""
    folder = tmp_path_factory.mktemp("old") / "digits"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuner_of(theirs, folder, 2).search(**DATA)
    return folder


@pytest.fixture
def project(old, tmp_path) -> Path:
    """A copy to go on with."""
    return Path(shutil.copytree(old, tmp_path / "digits"))


def test_an_old_project_opens_and_the_search_goes_on(theirs, project, capsys):
    scores = [
        json.loads(p.read_text())["score"] for p in sorted(project.glob("trial_*/trial.json"))
    ]
    tuner = tuner_of(ours, project, 4)
    assert "Reloading Tuner from" in capsys.readouterr().out
    assert [trial.score for trial in tuner.oracle.trials.values()] == scores
    assert tuner.remaining_trials == 2
    before = tuner.load_model(tuner.oracle.get_trial("0"))
    assert before.evaluate(X, Y, verbose=0)[0] == pytest.approx(scores[0], rel=1e-5)
    tuner.search(**DATA)
    assert list(tuner.oracle.trials) == ["0", "1", "2", "3"]
    assert [trial.score for trial in tuner.oracle.trials.values()][:2] == scores
    # As KerasTuner alone would have gone on.
    fresh = theirs.oracles.RandomSearchOracle("val_loss", max_trials=4, seed=7)
    hp = theirs.HyperParameters()
    spaces.small(hp)
    fresh.update_space(hp)
    values = [fresh._random_values() for _ in range(4)]
    assert [trial.hyperparameters.values for trial in tuner.oracle.trials.values()] == [
        {name: pytest.approx(value) for name, value in each.items()} for each in values
    ]


@pytest.mark.slow
def test_our_project_opens_there(theirs, tmp_path):
    tuner = tuner_of(ours, tmp_path / "ours", 2)
    tuner.search(**DATA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        there = tuner_of(theirs, tmp_path / "ours", 3)
        assert [t.score for t in there.oracle.trials.values()] == [
            t.score for t in tuner.oracle.trials.values()
        ]
        for trial_id in ("0", "1"):
            yours = there.load_model(there.oracle.get_trial(trial_id))
            mine = tuner.load_model(tuner.oracle.get_trial(trial_id))
            np.testing.assert_array_equal(yours.predict(X, verbose=0), mine.predict(X, verbose=0))
        lr = float(yours.optimizer.learning_rate)
        assert lr == pytest.approx(there.oracle.get_trial("1").hyperparameters["lr"])
        there.search(**DATA)
    assert len(there.oracle.trials) == 3


@pytest.mark.slow
def test_trials_under_way_are_tried_again(tmp_path):
    class Interrupted(ours.RandomSearch):
        stop = True

        def on_trial_end(self, trial: Any) -> None:
            if self.stop:
                raise KeyboardInterrupt("stop")
            super().on_trial_end(trial)

    def tuner(cls: type) -> Any:
        return cls(spaces.small, "val_loss", max_trials=2, seed=1, directory=tmp_path)

    interrupted = tuner(Interrupted)
    with pytest.raises(KeyboardInterrupt, match="stop"):
        interrupted.search(**DATA)
    began = [t.hyperparameters.values for t in interrupted.oracle.trials.values()]
    assert began
    again = tuner(ours.RandomSearch)  # another process
    again.search(**DATA)
    trials = again.oracle.trials.values()
    assert [trial.status for trial in trials] == ["COMPLETED"] * 2
    assert [trial.hyperparameters.values for trial in trials][: len(began)] == began
    Interrupted.stop = False
    interrupted.search(**DATA)  # the same object
    assert [t.status for t in interrupted.oracle.trials.values()] == ["COMPLETED"] * 2


def test_overwrite_begins_anew(project):
    tuner = tuner_of(ours, project, 4, overwrite=True)
    assert tuner.oracle.trials == {}
    assert not list(project.glob("trial_*"))


def test_what_is_overwritten_stays_until_the_new_project_has_a_trial(project):
    before = sorted(tuner_of(ours, project, 4).oracle.trials)
    tuner_of(ours, project, 4, overwrite=True)
    tuner_of(ours, project, 4, overwrite=True)  # the one in between had no trial
    assert sorted(tuner_of(ours, project, 4).oracle.trials) == before
    tuner = tuner_of(ours, project, 4, overwrite=True)
    assert len(list(project.parent.glob(".*"))) == 1
    tuner.oracle._save_trial(Trial(ours.HyperParameters(), trial_id="0", status="COMPLETED"))
    assert not list(project.parent.glob(".*"))


@pytest.mark.parametrize(
    ("name", "text"),
    [("oracle.json", "{"), ("oracle.json", "{}"), ("trial_0/trial.json", '{"trial_id": "0"}')],
)
def test_a_damaged_project_names_the_file(project, name, text):
    (project / name).write_text(text)
    with pytest.raises(ProjectError, match=rf"{name}.*change `project_name` or pass `overwrite=T"):
        tuner_of(ours, project, 4)


def test_a_study_is_made_of_an_old_project(project):
    assert paceline.from_keras_tuner(project) == "digits"
    tuner = paceline.Tuner(spaces.small, "val_loss", study="digits", seed=1)
    stored = [json.loads(p.read_text()) for p in sorted(project.glob("trial_*/trial.json"))]
    assert [tuner.trial(n).value for n in range(2)] == [trial["score"] for trial in stored]
    assert tuner.trial(0).hparams == stored[0]["hyperparameters"]["values"]
    assert set(tuner.history(0)) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    data = {k: v for k, v in DATA.items() if k != "verbose"}
    tuner.search(**data, n_trials=3, verbose=0)  # and goes on
    assert [tuner.trial(n).state for n in range(3)] == ["complete"] * 3
    with pytest.raises(paceline.StudyError, match="study must be a new name, got 'digits'"):
        paceline.from_keras_tuner(project)


def test_failed_trials_come_along_and_unfinished_do_not(project):
    for number, status, message in ((0, "FAILED", "Traceback\nValueError: no"), (1, "RUNNING", "")):
        path = project / f"trial_{number}" / "trial.json"
        state = json.loads(path.read_text())
        path.write_text(json.dumps({**state, "status": status, "message": message}))
    paceline.from_keras_tuner(project, "other", objective="val_loss", directory="elsewhere")
    tuner = paceline.Tuner(spaces.small, study="other", directory="elsewhere")
    results = tuner.results()
    assert list(results["state"]) == ["failed"]
    assert tuner.trial(0).error == "ValueError: no"


@pytest.mark.parametrize(
    ("given", "match"),
    [("nowhere", "project must be .*, got .*nowhere, which does not exist. Pass `directory/"),
     (".", "which has no oracle.json. The projects in it are digits. Pass"),
     ("digits/trial_0", "trial_0, which has no oracle.json. Pass")],
)  # fmt: skip
def test_a_folder_that_is_no_project_says_what_to_pass(project, given, match):
    with pytest.raises(ProjectError, match=match):
        paceline.from_keras_tuner(project.parent / given)


def test_an_objective_that_is_not_clear_is_asked_for(project):
    with pytest.raises(
        paceline.ObjectiveError, match='must be a metric of .*one of .*val_loss.*, got "auc"'
    ):
        paceline.from_keras_tuner(project, objective="auc")
    for path in project.glob("trial_*/trial.json"):
        state = json.loads(path.read_text())
        path.write_text(json.dumps({**state, "score": -1.0}))
    with pytest.raises(paceline.ObjectiveError, match='no metric fits.*objective="val_accuracy"'):
        paceline.from_keras_tuner(project)


@pytest.mark.parametrize("copied", [lambda each: pickle.loads(pickle.dumps(each)), copy.deepcopy])
def test_a_copy_of_a_tuner_has_its_trials_and_searches_on(copied: Any, tmp_path: Path) -> None:
    tuner = tuner_of(ours, tmp_path / "p", 2)
    tuner.search(**DATA)
    again = copied(tuner)
    assert [t.score for t in again.oracle.get_best_trials(2)] == [
        t.score for t in tuner.oracle.get_best_trials(2)
    ]
    again.oracle.max_trials = 3
    again.search(**DATA)
    assert len(again.oracle.trials) == 3
