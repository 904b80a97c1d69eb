"""Logs of old scans become studies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import paceline
from paceline.compat import talos
from paceline.compat.talos import errors
from paceline.compat.talos.logs import best_epoch
from paceline.errors import StudyError
from paceline.study.study import Study

#: As Talos 1.4 wrote it, and as 2.0 does.
OLD = """start,end,duration,round_epochs,loss,acc,val_loss,val_acc,lr,units,activation,opt
01/02/20-1,01/02/20-2,3.5,10,0.5,0.8,0.6,0.75,0.1,8,relu,None
01/02/20-2,01/02/20-3,4.5,10,0.4,0.9,0.7,0.85,0.01,16,elu,
01/02/20-3,01/02/20-4,2.0,7,0.3,0.7,,,0.1,16,relu,x
"""
NEW = """start,end,duration,execution_time,round_epochs,_warnings,loss,val_loss,lr,_trial_id,_hash
a,b,1.0,1.0,2,[],0.5,0.4,3,x,y
a,b,1.0,1.0,2,[],0.6,0.2,4,x,z
"""


def study_of(text, **arguments):
    Path("scan.csv").write_text(text)
    name = paceline.from_talos_csv("scan.csv", **arguments)
    return Study(name, directory=Path("runs"))


def test_a_log_becomes_a_study():
    study = study_of(OLD)
    assert (study.name, study.trials.direction) == ("scan", "maximize")
    first, second, third = study.trials
    assert first.hparams == {"lr": 0.1, "units": 8, "activation": "relu", "opt": "nan"}
    assert (first.value, first.train_seconds, first.state) == (0.75, 3.5, "complete")
    assert (first.epochs, first.history["val_loss"][-1]) == (10, 0.6)
    assert second.hparams["units"] == 16
    assert (third.state, third.error) == ("failed", "val_acc is nan")
    assert study.trials.best.number == 1


def test_another_objective_and_another_version():
    study = study_of(OLD, study="by-loss", objective="val_loss")
    assert study.trials.direction == "minimize"
    assert study.trials.best.number == 0
    study = study_of(NEW, study="new")
    assert [trial.hparams for trial in study.trials] == [{"lr": 3}, {"lr": 4}]
    assert study.trials.best.value == 0.2


@pytest.mark.parametrize("metric", ["huber", "poisson", "log_cosh", "false_negatives", "kld"])
def test_losses_of_keras_are_minimised(metric):
    study = study_of(NEW.replace("val_loss", f"val_{metric}"), objective=f"val_{metric}")
    assert study.trials.direction == "minimize"
    assert study.trials.best.value == 0.2
    assert best_epoch(f"val_{metric}", [3.0, 1.0, 2.0]) == 1


def test_a_metric_that_nobody_knows_needs_a_direction():
    text = NEW.replace("val_loss", "val_perplexity")
    with pytest.raises(errors.TalosParamsError, match="Pass 'min:val_perplexity' or 'max:val_perp"):
        study_of(text, objective="val_perplexity")
    assert not Path("runs").exists()
    assert study_of(text, objective="min:val_perplexity").trials.best.value == 0.2
    assert study_of(text, study="max", objective="max:val_perplexity").trials.best.value == 0.4


def test_a_parameter_called_like_a_metric_has_its_own_name():
    text = "duration,round_epochs,loss,val_loss,param__loss,lr\n1.0,2,0.5,0.4,mse,3\n"
    (trial,) = study_of(text).trials
    assert trial.hparams == {"loss": "mse", "lr": 3}
    before_talos_2 = text.replace("param__loss", "loss")
    (trial,) = study_of(before_talos_2, study="before").trials
    assert trial.hparams == {"loss": "mse", "lr": 3} and trial.history["loss"][-1] == 0.5


def test_what_callbacks_log_is_no_parameter():
    name = paceline.from_talos_csv(logged(), "own")
    (trial,) = Study(name, directory=Path("runs")).trials
    assert trial.hparams == {"units": 3, "watts_min": 2}
    assert trial.history["learning_rate"] == [0.1]
    text = """round_epochs,loss,val_loss,learning_rate,watts_min,watts_max,seconds,Ws,lr
2,0.5,0.4,0.009999999776482582,1,2,3,4,0.01
2,0.5,0.4,0.5,1,2,3,4,0.5
"""
    assert [trial.hparams for trial in study_of(text).trials] == [{"lr": 0.01}, {"lr": 0.5}]


def logged():
    """The log of a scan whose model logs a rate, and has a parameter of an odd name."""

    def model(*arguments):
        return {"loss": [0.5], "val_loss": [0.4], "learning_rate": [0.1]}, None

    params = {"units": [3], "watts_min": [2]}
    return talos.Scan(np.ones((8, 2)), np.ones(8), params, model, "test", seed=1).log_path


def test_a_learning_rate_of_a_log_may_be_a_parameter():
    text = "round_epochs,loss,val_loss,learning_rate\n2,0.5,0.4,0.01\n2,0.5,0.4,0.5\n"
    found = [trial.hparams for trial in study_of(text).trials]
    assert found == [{"learning_rate": 0.01}, {"learning_rate": 0.5}]


def test_params_may_be_named():
    study = study_of("loss,lr,score\n1.0,0.5,3\n2.0,0.1,4\n", params=["lr"], objective="max:score")
    assert [trial.hparams for trial in study.trials] == [{"lr": 0.5}, {"lr": 0.1}]
    assert study.trials.best.value == 4


@pytest.mark.parametrize(
    ("text", "arguments", "why"),
    [
        (None, {}, r"path must be an existing file, got scan\.csv"),
        ("", {}, r"path must be a table .*, got scan\.csv"),
        ("loss,lr\n", {}, r"got scan\.csv, which has no rows"),
        ("a,b\n1,2\n", {}, r"path must be the log of a scan, got scan\.csv"),
        ("round_epochs,loss,val_loss\n1,2,3\n", {}, "has no parameters after its metrics"),
        (OLD, {"objective": "f1"}, "objective must be one of .*, got 'f1'"),
        (OLD, {"params": ["rate"]}, "params must be one of .*, got 'rate'"),
        (
            "loss,lr\n1.0,2.0\n",
            {"params": ["lr"]},
            "neither val_acc nor val_loss. Pass one of loss",
        ),
    ],
)
def test_what_is_no_log(text, arguments, why):
    if text is not None:
        Path("scan.csv").write_text(text)
    with pytest.raises((errors.TalosDataError, errors.TalosParamsError), match=why):
        paceline.from_talos_csv("scan.csv", **arguments)
    assert not Path("runs").exists()


def test_a_study_is_not_written_twice():
    study_of(OLD)
    with pytest.raises(StudyError, match="study must be a new name, got 'scan'"):
        study_of(OLD)


def test_a_trial_id_that_looks_like_a_number_stays_as_it_is():
    Path("scan.csv").write_text("loss,val_loss,lr,_trial_id\n0.5,0.4,3,12e45\n")
    assert talos.Analyze("scan.csv").data["_trial_id"].tolist() == ["12e45"]
