"""Pruners by name and as objects, over trials as a study has them."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from paceline.errors import UsageError
from paceline.study.pruners.asha import ASHA
from paceline.study.pruners.pruners import check_pruner, make_pruner, pruner_text
from paceline.study.trials import trial_codec
from paceline.study.trials.trial import Trial


def pruner(given: Any, *, direction: Any = "maximize", past: Any = (), **more: Any) -> Any:
    settings = {"epochs": 9, "n_trials": 9, **more}
    return make_pruner(check_pruner(given), direction=direction, past=past, **settings)


def complete(number: int, values: list[float]) -> tuple[Trial, dict[int, float]]:
    by_epoch = dict(enumerate(values, start=1))
    return Trial(number, "complete", max(values), epochs=len(values)), by_epoch


def verdicts(made: Any, number: int, values: list[float]) -> list[str]:
    found, best = [], -float("inf")
    for epoch, value in enumerate(values, start=1):
        best = max(best, value)
        found.append(made.judge(Trial(number, value=best), epoch, 9, value))
    return found


@pytest.mark.parametrize("given", [None, "none", optuna.pruners.NopPruner()])
def test_no_pruner(given: Any) -> None:
    assert pruner(given) is None


@pytest.mark.parametrize(
    "given",
    [
        "medain",
        "median:3",
        "percentile:x",
        "threshold",
        "threshold:",
        "patience:1.5",
        "asha:1:2:3",
        3,
        ASHA,
    ],
)
def test_what_is_no_pruner(given: Any) -> None:
    with pytest.raises(UsageError, match="pruner: .* Use one of auto, none, median"):
        check_pruner(given)


def test_percentiles_between_0_and_100() -> None:
    with pytest.raises(UsageError, match="between 0 and 100, got percentile:120"):
        pruner("percentile:120")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("asha", "asha:1:3"),
        ("asha:2", "asha:2:3"),
        (ASHA(4, 2), "asha:4:2"),
        ("percentile:30", "percentile:30"),
        (None, None),
        (optuna.pruners.MedianPruner(), "MedianPruner"),
    ],
)
def test_as_text(given: Any, text: str | None) -> None:
    assert pruner_text(check_pruner(given)) == text
    if text is not None and text[0].islower():
        assert pruner_text(check_pruner(text)) == text


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_median_of_complete_trials(direction: str) -> None:
    sign = 1 if direction == "maximize" else -1
    past = [complete(n, [sign * 0.5, sign * 0.6]) for n in range(5)]
    made = pruner("median", direction=direction, past=past)
    assert made.judge(Trial(5, value=sign * 0.7), 1, 9, sign * 0.7) == "go"
    assert made.judge(Trial(6, value=sign * 0.3), 1, 9, sign * 0.3) == "prune"


def test_trials_that_end_count() -> None:
    made = pruner("median")
    for number in range(5):
        made.judge(Trial(number, value=0.5), 1, 9, 0.5)
        made.end_trial(Trial(number, "complete", 0.5))
    assert made.judge(Trial(5, value=0.3), 1, 9, 0.3) == "prune"


def test_percentile() -> None:
    past = [complete(n, [0.1 * n]) for n in range(1, 6)]
    assert verdicts(pruner("percentile:50", past=past), 6, [0.35]) == ["go"]
    assert verdicts(pruner("percentile:20", past=past), 6, [0.35]) == ["prune"]


def test_thresholds_go_by_the_values_themselves() -> None:
    assert verdicts(pruner("threshold:0.5"), 0, [0.6, 0.4]) == ["go", "prune"]
    assert verdicts(pruner("threshold:0.5", direction="minimize"), 0, [0.4, 0.6]) == ["go", "prune"]
    given = optuna.pruners.ThresholdPruner(lower=0.5)
    assert verdicts(pruner(given), 0, [0.6, 0.4]) == ["go", "prune"]


def test_patience() -> None:
    values = [0.5, 0.6, 0.6, 0.5, 0.5, 0.5]
    assert verdicts(pruner("patience:2"), 0, values)[-1] == "prune"
    assert set(verdicts(pruner("patience:9"), 0, values)) == {"go"}


def test_hyperband_stops_the_worst() -> None:
    made = pruner("hyperband", epochs=27)
    lasted = []
    for number in range(50, 0, -1):
        found = [*verdicts(made, number, [number / 50] * 26), "prune"]
        lasted.append(found.index("prune") + 1)
    assert lasted[0] == 27
    assert min(lasted) <= 3


def test_asha_takes_the_best_value_so_far_and_counts_past_trials() -> None:
    past = [complete(0, [0.5, 0.4]), complete(1, [0.6, 0.7])]
    made = pruner("asha", past=past)
    assert made.pauses
    assert verdicts(made, 2, [0.55]) == ["pause"]
    made = pruner("asha", past=past)
    assert verdicts(made, 2, [0.65]) == ["go"]
    assert made.promoted() == []  # those of the past have ended


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    "given",
    [
        optuna.pruners.MedianPruner(),
        optuna.pruners.PercentilePruner(80.0, n_min_trials=3),
        optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2),
    ],
)
def test_trials_that_optuna_ran_are_judged_by_as_optuna_does(given: Any, first: int) -> None:
    def objective(trial: optuna.Trial) -> float:
        for step in range(first, first + 6):
            trial.report(0.1 * (trial.number % 5) + 0.05 * step, step)
            trial.should_prune()
        return 0.1 * (trial.number % 5)

    theirs = optuna.create_study(direction="maximize", pruner=given)
    theirs.optimize(objective, n_trials=10)
    past = [trial_codec.from_frozen(stored) for stored in theirs.trials]
    assert not any(trial is None for trial in past)
    for level in (-0.1, 0.15, 0.25, 0.5):
        made = pruner(given, past=[(trial, trial.by_epoch("val_accuracy")) for trial in past])
        values = [level + 0.05 * epoch for epoch in range(1, 6)]
        asked = theirs.ask()
        by_optuna = []
        for epoch, value in enumerate(values, start=1):
            asked.report(value, epoch)
            by_optuna.append("prune" if asked.should_prune() else "go")
        theirs.tell(asked, state=TrialState.FAIL)  # no pruner counts it
        assert verdicts(made, 10, values) == by_optuna
        if level == -0.1:
            assert "prune" in by_optuna


def test_asha_places_trials_whose_epochs_have_gaps() -> None:
    past = [(Trial(n, "complete", 0.1 * n), {2: 0.1 * n, 20: 0.1 * n}) for n in range(1, 6)]
    made = pruner("asha:1:3", epochs=27, past=past)
    rungs = {epoch: [loss for loss, _ in losses] for epoch, losses, _ in made.state()}
    assert set(rungs) == {3, 9}
    assert rungs[3] == rungs[9] == [-0.5, -0.4, pytest.approx(-0.3), -0.2, -0.1]


def test_a_first_rung_beyond_the_epochs() -> None:
    with pytest.raises(UsageError, match="first rung"):
        pruner("asha:9", epochs=9)
    assert pruner("asha:9", epochs=None) is not None


@pytest.mark.parametrize("given", ["median", "hyperband", "patience:2", "asha"])
def test_a_trial_that_begins_again_is_judged_as_if_it_never_had(given: str) -> None:
    def at_a_second_start(*, begun_before: bool) -> tuple[list[str], list[int]]:
        past = [complete(number, [0.1 * number] * 9) for number in range(6)]
        made = pruner(given, epochs=27, past=past)
        if begun_before:
            verdicts(made, 6, [0.9] * 9)
            verdicts(made, 7, [0.0] * 9)
            kept, made = made.state(), pruner(given, epochs=27)
            made.load_state(kept)
            made.restart({6, 7})
        found = verdicts(made, 6, [0.05] * 9) + verdicts(made, 7, [0.3] * 9)
        return found, made.promoted()

    assert at_a_second_start(begun_before=True) == at_a_second_start(begun_before=False)


@pytest.mark.parametrize(
    "given",
    [
        "hyperband",
        optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
    ],
)
def test_rungs_remember_trials_of_earlier_sessions(given: Any) -> None:
    """Of six bad trials after thirty good ones, almost all stop at the first rung, as in Optuna."""
    past = [complete(number, [0.1 * epoch for epoch in range(1, 10)]) for number in range(30)]
    made = pruner(given, past=past, epochs=9, n_trials=99)
    first = [verdicts(made, number, [0.01] * 8)[0] for number in range(30, 36)]
    assert first.count("prune") >= 2, first  # some brackets of Hyperband look later
