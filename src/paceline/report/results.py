"""A study's trials as a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.report.tables import FIXED_COLUMNS, column_name, hparam_names, trial_record
from paceline.trial import Trial

if TYPE_CHECKING:
    import pandas as pd


def results_frame(trials: Sequence[Trial]) -> pd.DataFrame:
    """One row per trial: number, state, value, epochs, seconds, seed, program, plan, then hyperparameters.

    A hyperparameter called like one of the columns is ``hp.NAME``; one that a trial does not have is missing
    in its row.
    """
    import pandas as pd

    names = hparam_names(trials)
    rows = [
        [
            *(trial_record(trial)[column] for column in FIXED_COLUMNS),
            *(trial.hparams.get(name) for name in names),
        ]
        for trial in trials
    ]
    return pd.DataFrame(rows, columns=[*FIXED_COLUMNS, *map(column_name, names)])
