"""Hyperband."""

from __future__ import annotations

from typing import Any

from paceline.compat.keras_tuner.engine.tuner import Tuner
from paceline.compat.keras_tuner.oracles.hyperband import BEGIN, EPOCHS, PARENT, HyperbandOracle


class Hyperband(Tuner):
    """Many configurations for a few epochs, the best of them for more.

    Args:
        hypermodel: As for ``Tuner``.
        objective: As for ``Oracle``; so are those not named here.
        max_epochs: Epochs of those that go all the way.
        factor: About one trial in this many goes on, for this many times the epochs.
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
        # Callbacks count epochs from where the trial goes on.
        return not fit_kwargs.get("callbacks") and super()._is_plain(fit_kwargs)

    def _epochs(self, hp: Any, given: int) -> int:
        values = hp.values
        return values[EPOCHS] - values[BEGIN] if EPOCHS in values else given

    def run_trial(self, trial: Any, *args: Any, **kwargs: Any) -> Any:
        """As of ``Tuner``, for the epochs of the trial's round."""
        values = trial.hyperparameters.values
        if EPOCHS in values:
            kwargs |= {"epochs": values[EPOCHS], "initial_epoch": values[BEGIN]}
        return super().run_trial(trial, *args, **kwargs)

    def _build_hypermodel(self, hp: Any) -> Any:
        model = super()._build_hypermodel(hp)
        if PARENT in hp.values:
            self._load_weights(model, hp.values[PARENT])
        return model
