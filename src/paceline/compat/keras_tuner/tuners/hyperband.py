"""Hyperband."""

from __future__ import annotations

from typing import Any

from paceline.compat.keras_tuner.engine.tuner import Tuner
from paceline.compat.keras_tuner.oracles.hyperband import BEGIN, EPOCHS, PARENT, HyperbandOracle


class Hyperband(Tuner):
    """A tuner that trains many configurations for a few epochs, and the best of them for more.

    Arguments that are not named here are those of ``Oracle``.

    Args:
        hypermodel: The hypermodel, as for ``Tuner``.
        objective: The objective, as for ``Oracle``.
        max_epochs: Epochs of a trial in the last round of a bracket.
        factor: About one trial in ``factor`` goes on to the next round, which has ``factor`` times
            the epochs.
        hyperband_iterations: How often all brackets are run; None: without end.
        **kwargs: Arguments of ``Tuner``.
    """

    def __init__(
        self,
        hypermodel: Any = None,
        objective: Any = None,
        max_epochs: int = 100,
        factor: int = 3,
        hyperband_iterations: float | None = 1,
        seed: int | None = None,
        hyperparameters: Any = None,
        tune_new_entries: bool = True,
        allow_new_entries: bool = True,
        max_retries_per_trial: int = 0,
        max_consecutive_failed_trials: int = 3,
        **kwargs: Any,
    ) -> None:
        self.seed = seed
        oracle = HyperbandOracle(
            objective=objective,
            max_epochs=max_epochs,
            factor=factor,
            hyperband_iterations=hyperband_iterations,
            seed=seed,
            hyperparameters=hyperparameters,
            tune_new_entries=tune_new_entries,
            allow_new_entries=allow_new_entries,
            max_retries_per_trial=max_retries_per_trial,
            max_consecutive_failed_trials=max_consecutive_failed_trials,
        )
        super().__init__(oracle, hypermodel, **kwargs)

    def _is_plain(self, fit_kwargs: dict[str, Any]) -> bool:
        # A pack would give callbacks epochs from 0, while a trial that goes on starts at a later
        # one.
        return not fit_kwargs.get("callbacks") and super()._is_plain(fit_kwargs)

    def _epochs(self, hp: Any, given: int) -> int:
        values = hp.values
        return values[EPOCHS] - values[BEGIN] if EPOCHS in values else given

    def run_trial(self, trial: Any, *args: Any, **kwargs: Any) -> Any:
        """Builds and trains the model of a trial for the epochs of its round.

        Args:
            trial: The trial.
            *args: Positional arguments of ``search``.
            **kwargs: Keyword arguments of ``search``.
        """
        values = trial.hyperparameters.values
        if EPOCHS in values:
            kwargs |= {"epochs": values[EPOCHS], "initial_epoch": values[BEGIN]}
        return super().run_trial(trial, *args, **kwargs)

    def _build_hypermodel(self, hp: Any) -> Any:
        model = super()._build_hypermodel(hp)
        if PARENT in hp.values:
            self._load_weights(model, hp.values[PARENT])
        return model
