"""``tuner.plot``: figures of studies, made by hand and searched."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution

import paceline
import toys
from paceline.errors import StudyError, UsageError
from paceline.report.html.figures import figures_of
from paceline.report.html.importance import importances_of
from paceline.report.plots import EACH, StudyPlots
from paceline.study.trials.table import TrialTable
from paceline.study.trials.trial import Trial
from subjects import optuna_subject, subject_of

FIGURES = ("history", "importances", "parallel", "slice", "curves")


@pytest.fixture
def plots() -> Callable[..., StudyPlots]:
    """Plots of a study of complete trials, made by hand; lr falls and val_loss with it."""

    def make(n: int, **hparams: Any) -> StudyPlots:
        study = optuna.create_study(study_name="s")
        trials = TrialTable("s")
        trials.set_direction("minimize")
        for number in range(n):
            loss = 1 / (1 + number)
            values = {"lr": 0.001 * (n - number), "units": 8 * (number % 4), **hparams}
            distributions = {
                "lr": optuna.distributions.FloatDistribution(0.0, 10.0),
                "units": optuna.distributions.IntDistribution(0, 64),
            }
            params = {name: values[name] for name in distributions}
            study.add_trial(
                optuna.trial.create_trial(params=params, distributions=distributions, value=loss)
            )
            history = {"val_loss": [2 * loss, loss], "loss": [loss, loss / 2]}
            trial = Trial(number, "complete", loss, values, history=history, epochs=2)
            trials.add(trial)
        return StudyPlots(study, trials, "val_loss")

    return make


def text_of(figure: Any) -> str:
    return str(figure.to_json())


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_names_the_objective(plots, name: str) -> None:
    figure = getattr(plots(8), name)()
    assert len(figure.data) >= 1
    assert "val_loss" in text_of(figure)
    assert "Objective Value" not in text_of(figure)


@pytest.mark.parametrize("name", FIGURES)
def test_a_study_without_trials_says_what_to_do(plots, name: str) -> None:
    with pytest.raises(StudyError, match=r"^plot.*([Cc]ontinue the search|Run search first)\.$"):
        getattr(plots(0), name)()


def test_one_trial_tells_no_importance(plots) -> None:
    with pytest.raises(StudyError, match="has 1 trial with a value, but this figure needs 2"):
        plots(1).importances()


@pytest.mark.parametrize("name", ["importances", "parallel", "slice"])
def test_a_space_without_hyperparameters_is_told(name: str) -> None:
    study, trials = optuna.create_study(study_name="s"), TrialTable("s")
    for number in range(3):
        study.add_trial(optuna.trial.create_trial(value=float(number)))
        trials.add(Trial(number, "complete", float(number), epochs=1))
    with pytest.raises(StudyError, match=f"plot.{name}: study 's' has no hyperparameters"):
        getattr(StudyPlots(study, trials, "loss"), name)()


def test_unknown_names_are_told_with_those_there_are(plots) -> None:
    found = plots(4)
    for name in ("parallel", "slice"):
        with pytest.raises(UsageError, match=rf"plot.{name}: hparams: 'depth' .* lr, units"):
            getattr(found, name)(["depth"])
    with pytest.raises(UsageError, match="metric 'acc' is not one of val_loss, loss"):
        found.curves("acc")
    assert len(found.slice(["lr"]).data) == 1


def test_each_curve_is_the_trials_history(plots) -> None:
    figure = plots(3).curves("loss")
    assert [line.name for line in figure.data] == ["trial 0", "trial 1", "trial 2"]
    assert figure.data[1].x == (1, 2)
    assert figure.data[1].y == (0.5, 0.25)


def test_of_many_trials_the_best_have_curves_and_all_a_band(plots) -> None:
    figure = plots(EACH + 1).curves()
    lines = [trace for trace in figure.data if trace.name and trace.name.startswith("trial")]
    assert {line.name for line in lines} == {f"trial {n}" for n in range(151, 201)}
    assert "the best 50 of 201 trials" in figure.layout.title.text
    bands = [trace for trace in figure.data if trace.name and "of all trials" in trace.name]
    assert [band.name for band in bands] == ["10 to 90 % of all trials", "25 to 75 % of all trials"]
    # The last epoch's values are 1, 1/2, ... 1/201: nine tenths of them lie below 1/20.1 or so.
    assert bands[0].y[1] == pytest.approx(1 / 21, rel=1e-6)


def test_names_of_users_are_text(plots) -> None:
    found = plots(2, **{"<b>x</b>": "<i>y</i>"})
    assert "<b>" not in text_of(found.curves())


def test_a_tuner_plots_its_study(fresh_folder) -> None:
    x, y = toys.data()
    tuner = paceline.Tuner(toys.dense, study="s", sampler="random", on_note=lambda text: None)
    tuner.search(x, y, validation_data=(x, y), epochs=2, batch_size=20, n_trials=3)
    again = paceline.Tuner(toys.dense, study="s")
    for name in FIGURES:
        assert "val_accuracy" in text_of(getattr(tuner.plot, name)())
        assert "val_accuracy" in text_of(getattr(again.plot, name)())
    (first, *_) = tuner.plot.curves("loss").data
    assert list(first.y) == tuner.history(0)["loss"]


def test_a_tuner_plots_trials_that_were_stopped(fresh_folder) -> None:
    x, y = toys.data()
    tuner = paceline.Tuner(toys.dense, study="s", sampler="random", pruner="asha", seed=0)
    tuner.search(x, y, validation_data=(x, y), epochs=4, batch_size=20, n_trials=9)
    numbers = {trial.number for trial in map(tuner.trial, range(9)) if trial.value is not None}
    complete = {number for number in numbers if tuner.trial(number).state == "complete"}
    assert 0 < len(complete) < 9
    whole, cut, best = tuner.plot.history().data
    assert (set(whole.x), set(cut.x)) == (complete, numbers - complete)
    assert max(best.y) == tuner.best_trial.value
    whole, cut = tuner.plot.slice(["lr"]).data
    assert (len(whole.x), len(cut.x)) == (len(complete), len(numbers - complete))
    assert len(tuner.plot.parallel().data[0].dimensions[0]["values"]) == len(numbers)
    markup = tuner._repr_html_()
    assert markup.count("stopped early") >= len(numbers - complete)
    assert markup.count('<tr style="opacity') == len(numbers - complete)


# -- lineage ---------------------------------------------------------------------------------------


def population() -> StudyPlots:
    """Four trials; 2 copies 0 after epoch 1, and 3 copies 2 after epoch 2."""
    study, trials = optuna.create_study(study_name="s"), TrialTable("s")
    trials.set_direction("minimize")
    for number, (losses, continues, at) in enumerate(
        [
            ([0.9, 0.8, 0.7, 0.6], None, None),
            ([0.95], None, None),
            ([0.9, 0.5, 0.45, 0.4], 0, 1),
            ([0.9, 0.5, 0.3, 0.1], 2, 2),
        ]
    ):
        state = "complete" if len(losses) == 4 else "pruned"
        trial = Trial(
            number,
            state,
            losses[-1],
            {"lr": 0.1 * (number + 1), "<b>": "<script>"},
            history={"val_loss": losses},
            epochs=len(losses),
            continued_from=continues,
            continued_at=at,
        )
        trials.add(trial)
    return StudyPlots(study, trials, "val_loss")


def test_the_lineage_joins_each_copy_to_what_it_copies() -> None:
    every, line, joins = population().lineage().data
    assert list(line.x) == [1, 2, 3, 4]
    assert list(line.y) == [0.9, 0.5, 0.3, 0.1]
    assert [text.split(",")[0] for text in line.text] == [
        "trial 0",
        "trial 2",
        "trial 3",
        "trial 3",
    ]
    assert list(zip(joins.x, joins.y, strict=True)) == [(1, 0.9), (2, 0.5)]
    # A copy's own part begins where it was copied; None parts two trials.
    assert list(every.x) == [1, 2, 3, 4, None, 1, None, 1, 2, 3, 4, None, 2, 3, 4, None]
    assert "<script>" not in "".join(filter(None, every.text))


def test_the_lineage_of_a_trial_that_is_not_the_best() -> None:
    _, line, joins = population().lineage(0).data
    assert list(line.y) == [0.9, 0.8, 0.7, 0.6]
    assert not joins.x
    with pytest.raises(StudyError, match="no trial 9"):
        population().lineage(9)


def test_a_study_without_copies_has_no_lineage(plots) -> None:
    with pytest.raises(StudyError, match='no trial of study .s. began as a copy .* pruner="pbt"'):
        plots(8).lineage()


def test_importances_are_those_of_the_report() -> None:
    subject = subject_of(60)
    study = optuna.create_study(direction="maximize")
    study.add_trials(subject.frozen)
    (bars,) = StudyPlots(study, subject.trials, subject.objective).importances().data
    shown = dict(zip(bars.y, bars.text, strict=True))
    found = importances_of(subject)
    assert shown == {name: f"{share:.0%}" for name, share in found.shares.items()}
    figures = {figure.name: figure for figure in figures_of(subject, found)}
    (drawn,) = json.loads(figures["importances"].json)["data"]
    assert dict(zip(drawn["y"], drawn["text"], strict=True)) == shown


def test_importances_of_what_all_trials_have_say_so() -> None:
    both = dict.fromkeys(("lr", "momentum"), FloatDistribution(0.0, 1.0))
    trials = []
    for number in range(30):
        distributions = both if number % 2 else {"lr": both["lr"]}
        trials.append((number / 30, distributions, dict.fromkeys(distributions, number / 30)))
    subject = optuna_subject(*trials)
    study = optuna.create_study(direction="maximize")
    study.add_trials(subject.frozen)
    figure = StudyPlots(study, subject.trials, subject.objective).importances()
    assert list(figure.data[0].y) == ["lr"]
    assert figure.layout.title.text == "what made value differ, among hyperparameters of all trials"


def test_a_population_has_no_importances() -> None:
    found = population()
    study = found._study
    for number in range(4):
        study.add_trial(
            optuna.trial.create_trial(
                params={"lr": 0.1 * (number + 1)},
                distributions={"lr": optuna.distributions.FloatDistribution(0.0, 1.0)},
                value=float(number),
            )
        )
    with pytest.raises(StudyError, match="copies of others whose hyperparameters changed"):
        found.importances()
