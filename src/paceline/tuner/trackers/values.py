"""Values of trials as trackers take them: finite numbers, short texts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from paceline.report import formats
from paceline.study.trials.trial import Trial


def epochs_of(trial: Trial) -> Iterator[tuple[int, dict[str, float]]]:
    """Give each epoch of a trial, from 1, with its metrics; those that are not finite left out."""
    for epoch in range(trial.epochs):
        logs = {
            name: values[epoch]
            for name, values in trial.history.items()
            if epoch < len(values) and math.isfinite(values[epoch])
        }
        if logs:
            yield epoch + 1, logs


def facts_of(trial: Trial) -> dict[str, str]:
    """Return what is known of a trial beside its hparams and metrics."""
    facts = {
        "paceline.trial": trial.number,
        "paceline.state": formats.state(trial.state),
        "paceline.seed": trial.seed,
        "paceline.program": trial.program_id,
        "paceline.plan": trial.plan,
        "paceline.fallback_reason": trial.fallback_reason,
        "paceline.error": trial.error,
        "paceline.continues": trial.continued_from,
    }
    return {name: str(value) for name, value in facts.items() if value is not None}


def setting_of(meta: Any) -> dict[str, str]:
    """Return how a study is searched, as short texts."""
    names = ("sampler", "pruner", "seed", "parallel_trials", "plan", "precision", "data")
    found = {name: meta.get(name) for name in names}
    search, run = meta.get("search"), meta.get("run")
    found |= search if isinstance(search, dict) else {}
    if isinstance(run, dict):
        git = run.get("git")
        found |= {"command": run.get("command"), "git": git and git.get("commit")}
    return {
        name: value if isinstance(value, str) else formats.to_json(value)
        for name, value in found.items()
        if value not in (None, [], {})
    }
