"""Random calls of a storage, whichever wrote it: for comparing two of them."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

PATH = Path("study.log")
SPACE = {
    "lr": FloatDistribution(1e-4, 1e-1, log=True),
    "units": IntDistribution(4, 64, step=4),
    "kind": CategoricalDistribution(["a", "b", None, 1.5, True]),
}


def template(draw: random.Random) -> Any:
    state = draw.choice(list(TrialState))
    return create_trial(
        state=state,
        value=draw.random() if state == TrialState.COMPLETE else None,
        params={"lr": 0.01, "units": 8, "kind": draw.choice(SPACE["kind"].choices)},
        distributions=SPACE,
        user_attrs={"x": draw.random()},
        system_attrs={"y": [1, None]},
        intermediate_values={3: 0.5},
    )


def random_call(storage: Any, draw: random.Random) -> Any:
    """One call of a storage; Optuna's writes what it refuses, too, and so may ours."""
    trial = draw.randrange(storage.get_n_trials(0))
    match draw.randrange(10):
        case 0:
            return storage.create_new_trial(0)
        case 1:
            return storage.create_new_trial(0, template(draw))
        case 2:
            return storage.set_trial_param(trial, "lr", 0.02, SPACE["lr"])
        case 3:
            return storage.set_trial_param(trial, "kind", 1.0, SPACE["kind"])
        case 4:
            value = draw.choice([0.25, math.nan, math.inf])
            return storage.set_trial_intermediate_value(trial, draw.randrange(5), value)
        case 5:
            return storage.set_trial_user_attr(trial, draw.choice("ab"), {"v": [draw.random()]})
        case 6:
            return storage.set_trial_system_attr(trial, "s", None)
        case 7:
            return storage.set_trial_state_values(trial, TrialState.RUNNING)
        case 8:
            storage.set_study_user_attr(0, draw.choice("ab"), draw.random())
            return storage.set_study_system_attr(0, "c", [draw.random()])
        case _:
            state = draw.choice([TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL])
            values = [draw.random()] if state == TrialState.COMPLETE else None
            return storage.set_trial_state_values(trial, state, values)


def timeless(storage: Any) -> list[Any]:
    """All trials, each with its times as seconds: Optuna 4.0 gives them another zone."""
    found = storage.get_all_trials(0)
    for trial in found:
        for name in ("datetime_start", "datetime_complete"):
            time = getattr(trial, name)
            setattr(trial, name, None if time is None else time.timestamp())
    return found
