"""Studies made by hand, for tests of reports: no search, no model."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from paceline.records import PackCreated, SlotStay, StepCompiled
from paceline.report.html.subject import ReportSubject
from paceline.study.timeline import Forecast, SearchBegun, SearchTimeline, Spent
from paceline.study.trials.table import TrialTable
from paceline.study.trials.trial import Trial

#: Names as nobody should call things, in every place where a user chooses a name.
HOSTILE = '</script><script>document.title="hacked"</script><img src=x onerror=alert(1)>'


def subject_of(
    n: int,
    *,
    name: str = "made",
    epochs: int = 10,
    mark: str = "",
    failed: int = 0,
    timeline: bool = True,
    optimum: float = 1e-2,
) -> ReportSubject:
    """Makes a study of complete trials, and some that failed.

    Args:
        n: Complete trials.
        name: The study's name.
        epochs: Epochs of each trial.
        mark: Added to every name that a user chooses.
        failed: Failed trials, after the others.
        timeline: Whether there is a record of its search.
        optimum: The learning rate with the best value.
    """
    draw = random.Random(n)
    distributions: dict[str, optuna.distributions.BaseDistribution] = {
        f"lr{mark}": FloatDistribution(1e-4, 1e-1, log=True),
        f"units{mark}": IntDistribution(8, 256, step=8),
        f"activation{mark}": CategoricalDistribution([f"relu{mark}", f"elu{mark}"]),
    }
    objective = f"val_accuracy{mark}"
    table = TrialTable(name)
    table.set_direction("maximize")
    study = optuna.create_study(direction="maximize")
    stored = []
    for number in range(n):
        params: dict[str, Any] = {
            f"lr{mark}": 10 ** draw.uniform(-4, -1),
            f"units{mark}": 8 * draw.randint(1, 32),
            f"activation{mark}": draw.choice([f"relu{mark}", f"elu{mark}"]),
        }
        off = (math.log10(params[f"lr{mark}"]) - math.log10(optimum)) ** 2
        top = 0.95 - 0.1 * off - draw.random() * 0.01
        curve = [top * (1 - 0.5 ** (epoch + 1)) for epoch in range(epochs)]
        table.add(
            Trial(
                number,
                "complete",
                curve[-1],
                params,
                epochs=epochs,
                train_seconds=0.01 * epochs,
                program_id="ab12cd" + mark,
                plan="vectorized",
                history={objective: curve, "loss": [1 - v for v in curve]},
                best_epoch=epochs,
            )
        )
        stored.append(
            optuna.trial.create_trial(params=params, distributions=distributions, value=curve[-1])
        )
    for number in range(n, n + failed):
        error = f"ValueError: width {number} is too large{mark}"
        table.add(Trial(number, "failed", hparams={f"lr{mark}": 0.1}, error=error))
        stored.append(optuna.trial.create_trial(state=optuna.trial.TrialState.FAIL))
    study.add_trials(stored)
    meta = {
        "objective": objective,
        "direction": "maximize",
        "sampler": "random",
        "seed": 7,
        "versions": {"keras": "3.15.1", "device": f"cpu{mark}"},
        "search": {"epochs": epochs, "batch_size": 32},
        "run": {"command": f"paceline search model.py{mark}", "git": {"commit": "a" * 40}},
    }
    searches = [timeline_of(n, epochs)] if timeline and n else []
    return ReportSubject(name, meta, table, study.get_trials(deepcopy=False), searches)


def cut_short(subject: ReportSubject, epochs: int, *, but: int) -> ReportSubject:
    """Stops all trials of a study after so many epochs, but for the best ones, ``but`` in number.

    Every second of them is unfinished instead.
    """
    for trial in subject.reached[but:]:
        trial.state = "pruned" if trial.number % 2 else "running"
        trial.history = {name: curve[:epochs] for name, curve in trial.history.items()}
        trial.value, trial.best_epoch = trial.history[subject.objective][-1], epochs
        trial.epochs = epochs
    return replace(subject)  # a new one: what is worked out once is worked out again


def optuna_subject(*trials: tuple[float, dict[str, optuna.distributions.BaseDistribution], dict]):
    """Makes the subject of a study of Optuna's own: no epochs, no seconds, nothing remembered.

    Args:
        trials: Value, distributions and values of the hyperparameters of each complete trial.
    """
    table = TrialTable("optuna")
    table.set_direction("maximize")
    study = optuna.create_study(direction="maximize")
    for number, (value, distributions, params) in enumerate(trials):
        table.add(Trial(number, "complete", value, params))
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=distributions, value=value)
        )
    return ReportSubject("optuna", {}, table, study.get_trials(deepcopy=False))


def timeline_of(n: int, epochs: int, slots: int = 16) -> SearchTimeline:
    """Makes the record of a search whose trials filled the slots of one pack, round after round."""
    search = SearchTimeline(SearchBegun(1.7e9, devices="cpu"))
    search.add(StepCompiled(0.5, 2.0, "ab12cd", "vectorized", slots))
    search.add(StepCompiled(2.0, 2.1, "ab12cd", "vectorized", slots, from_cache=True))
    search.add(PackCreated(0, slots, 2.2, "ab12cd", "vectorized"))
    for number in range(n):
        begun = 2.2 + (number // slots) * epochs * 0.1
        search.add(
            SlotStay(number, 0, number % slots, begun, begun + epochs * 0.1, epochs, "ab12cd")
        )
    end = search.seconds
    for share in (0.1, 0.3, 0.5, 0.8):
        search.add(Forecast(share * end, (1 - share) * end * 1.1))
    seconds = {"total": end + 0.3, "build": 1.0, "compile": 1.5, "train": end - 3, "storage": 0.1}
    search.add(Spent(end + 0.3, seconds, {"distinct": 1}, 0.9, finished=True))
    return search
