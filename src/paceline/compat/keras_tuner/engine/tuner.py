"""``Tuner``: trains Keras models for the trials of an oracle, in packs if it can."""

from __future__ import annotations

from typing import Any

import keras

from paceline.compat.keras_tuner import oracle_search, run_trial_search
from paceline.compat.keras_tuner.engine.display import notes_of
from paceline.compat.keras_tuner.engine.hypermodel import trains_itself
from paceline.compat.keras_tuner.engine.model_tuner import HANDS_ON, ModelTuner, maybe_distribute
from paceline.compat.keras_tuner.engine.objective import DefaultObjective, MultiObjective
from paceline.compat.keras_tuner.engine.trial import TrialStatus
from paceline.compat.keras_tuner.errors import FatalError, is_a
from paceline.executor.process import repeated_warnings_hidden
from paceline.tuner.search.progress import to_stderr, unpacked_backend

__all__ = ["Tuner", "maybe_distribute"]


class Tuner(ModelTuner):
    """A tuner that searches the hyperparameters of a Keras model.

    Trials train in packs, in one of two ways. If only ``build`` is yours, the tuner trains their
    models (``oracle_search.py``). If your class or hypermodel also trains (``run_trial``,
    ``HyperModel.fit``) or watches epochs (``on_epoch_end``), the tuner packs the ``fit`` calls of
    its trials (``run_trial_search.py``).

    Args:
        oracle: Decides which configurations are tried.
        hypermodel: A function ``build(hp)`` or a ``HyperModel``. A subclass that defines
            ``run_trial`` needs none.
        max_model_size: Number of trainable parameters; trials with larger models fail. None: no
            limit.
        optimizer: Replaces the optimizer that the model was compiled with.
        loss: Replaces the loss that the model was compiled with.
        metrics: Replaces the metrics that the model was compiled with.
        distribution_strategy: A ``tf.distribute.Strategy`` for trials with the TensorFlow backend.
            With JAX none is needed, because trials are spread over all accelerators.
        directory: The folder that holds project folders; None: the working folder.
        project_name: Name of the project's folder in ``directory``.
        logger: Has no effect, as in KerasTuner.
        tuner_id: Name of this process among those that share an oracle.
        overwrite: Whether a new project replaces an existing one, as soon as it has a complete
            trial; else the search continues the existing project.
        executions_per_trial: Number of trainings of each configuration, from different seeds; the
            metrics of a trial are the means.
        **kwargs: ``concurrent``, which KerasTuner does not have: whether trials that call ``fit``
            themselves begin while others train. False: never. True: always. None: unless they share
            something that would change their results; a note then names it.

    Raises:
        ValueError: ``hypermodel`` is missing, and the class does not define ``run_trial``.
        UsageError: ``concurrent`` is not True, False or None.
    """

    def _search(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        callbacks = fit_kwargs.get("callbacks")
        if callbacks:
            self._deepcopy_callbacks(callbacks)
        # Without x only the user's own ``fit`` can train: of the model, or in run_trial.
        has_data = bool(fit_args) or fit_kwargs.get("x") is not None
        in_packs, why = has_data and self._is_plain(fit_kwargs), None
        try:
            if in_packs and keras.backend.backend() != "jax":
                from paceline.compat.keras_tuner import own_process  # not in sessions on JAX

                why = own_process.search(self, fit_args, fit_kwargs)
                if why is None:
                    return
                # After a trial that cannot train there, ``run_trial`` sends the models of others.
                in_packs = not self.oracle.trials
            sends = not in_packs and self._sends_fits()
            if not sends and (told := unpacked_backend(why)) is not None:
                to_stderr(told)
            with repeated_warnings_hidden(self._shown_warnings):
                if in_packs:
                    self._search_in_packs(*fit_args, **fit_kwargs)
                elif sends or keras.backend.backend() == "jax":
                    run_trial_search.search(self, *fit_args, **fit_kwargs)
                else:
                    super()._search(*fit_args, **fit_kwargs)
        finally:
            best = self.oracle.get_best_trials(1)
            if best and best[0].status == TrialStatus.COMPLETED:
                self._callback_files.put_at_user_paths(best[0].trial_id)

    def _search_in_packs(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        try:
            oracle_search.search(self, oracle_search.as_fit_reads(fit_args, fit_kwargs))
            return
        except oracle_search.CannotStartError as error:
            why = error
        # Some trials may work, so this search tries them one by one, as KerasTuner does.
        notes_of(self.oracle)(f"trials run in Keras' own fit, one at a time: {why}")
        try:
            super()._search(*fit_args, **fit_kwargs)
        except RuntimeError as failed:
            if is_a(failed, FatalError):
                raise
            raise RuntimeError(f"{failed}\n{why}") from why

    def _sends_fits(self) -> bool:
        """Whether fits in ``run_trial`` train in the session's own process."""
        if keras.backend.backend() == "jax" or self.distribution_strategy is not None:
            return False
        from paceline.tuner.search.own_process import why_in_session  # not in sessions on JAX

        return why_in_session({}) is None

    def _is_plain(self, fit_kwargs: dict[str, Any]) -> bool:
        """Whether ``model.fit`` alone trains a trial, and no user code watches its epochs."""
        if self.hypermodel is None or trains_itself(self.hypermodel):
            return False
        if isinstance(self.oracle.objective, MultiObjective | DefaultObjective):
            return False
        return not any(map(self._has_own, HANDS_ON))
