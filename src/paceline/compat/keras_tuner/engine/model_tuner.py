"""The Keras model of one trial: how a tuner builds, trains, saves and loads it."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import warnings
from collections.abc import Iterator
from typing import Any

import keras

from paceline.compat.interception import check_concurrent
from paceline.compat.keras_tuner.engine.base_tuner import BaseTuner
from paceline.compat.keras_tuner.engine.callback_files import CallbackFiles
from paceline.compat.keras_tuner.engine.oracle import Oracle
from paceline.compat.keras_tuner.engine.trial import Trial
from paceline.compat.keras_tuner.engine.tuner_utils import (
    EpochCallback,
    SaveBestEpoch,
    TunerCallback,
    validate_trial_results,
)
from paceline.compat.keras_tuner.errors import (
    FailedTrialError,
    FatalTypeError,
    FatalValueError,
    ProjectError,
)
from paceline.compat.keras_tuner.utils import load_json, save_json
from paceline.executor.process import random_state_kept, repeated_warnings_hidden, search_process
from paceline.executor.tf_replicas import let_memory_grow
from paceline.program import keras_private
from paceline.program.foreign.tensorflow import accept_tensorflow
from paceline.program.initial_weights import noted_build
from paceline.program.own_model import own_model
from paceline.search_space import HyperParameters
from paceline.tuner.search.progress import to_stderr

#: Hooks around trials.
TRIAL_HOOKS = ("pre_create_trial", "on_trial_begin", "on_trial_end")
#: Methods that train a trial or watch its training. A subclass that overrides one of them needs the
#: search that runs ``run_trial`` of each trial.
HANDS_ON = (
    "run_trial",
    "_build_and_fit_model",
    "on_epoch_begin",
    "on_epoch_end",
    "on_batch_begin",
    "on_batch_end",
    "_configure_tensorboard_dir",
    "_get_tensorboard_dir",
)
#: The package whose methods are not the user's.
_OURS = __name__.rpartition(".engine.")[0]


class ModelTuner(BaseTuner):
    """The part of ``Tuner`` that builds, trains, saves and loads the Keras model of one trial."""

    def __init__(
        self,
        oracle: Oracle,
        hypermodel: Any = None,
        max_model_size: int | None = None,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        distribution_strategy: Any = None,
        directory: Any = None,
        project_name: str | None = None,
        logger: Any = None,
        tuner_id: str | None = None,
        overwrite: bool = False,
        executions_per_trial: int = 1,
        **kwargs: Any,
    ) -> None:
        if hypermodel is None and type(self).run_trial is ModelTuner.run_trial:
            raise ValueError(
                "Received `hypermodel=None`. Pass a function `build(hp)` or a `HyperModel`. Only a "
                "subclass that defines `run_trial()` needs none."
            )
        if distribution_strategy is not None and keras.backend.backend() != "tensorflow":
            to_stderr(
                "distribution_strategy is for the TensorFlow backend and has no effect here: "
                "Paceline spreads trials over all accelerators"
            )
        if keras.backend.backend() == "tensorflow" and distribution_strategy is None:
            # Before a model is built: else TensorFlow takes all of a GPU, and packs have none.
            let_memory_grow()
        self.max_model_size = max_model_size
        self.optimizer, self.loss, self.metrics = optimizer, loss, metrics
        self.distribution_strategy = distribution_strategy
        self.executions_per_trial = executions_per_trial
        self._callback_files = CallbackFiles(executions_per_trial)
        self._shown_warnings: set[Any] = set()
        self.concurrent = check_concurrent(kwargs.pop("concurrent", None))
        super().__init__(
            oracle,
            hypermodel,
            directory=directory,
            project_name=project_name,
            overwrite=overwrite,
            tuner_id=tuner_id,
            logger=logger,
            **kwargs,
        )

    def _epochs(self, hp: HyperParameters, given: int) -> int:
        """Number of epochs of a trial in a pack, for the ``epochs`` given to ``search``."""
        return given

    # -- building ----------------------------------------------------------------------------------

    def _look_at_build(self, hp: HyperParameters) -> None:
        accept_tensorflow()
        with (
            random_state_kept(),
            repeated_warnings_hidden(self._shown_warnings),
            keras_private.fresh_names(),
            maybe_distribute(self.distribution_strategy),
        ):
            super()._look_at_build(hp)

    def _build_hypermodel(self, hp: HyperParameters) -> Any:
        accept_tensorflow()
        with maybe_distribute(self.distribution_strategy):
            model = self.hypermodel.build(hp)
            self._override_compile_args(model)
            return model

    def _try_build(self, hp: HyperParameters) -> Any:
        """Builds the compiled model for ``hp``.

        Raises FatalTypeError for another result, and FailedTrialError above ``max_model_size``.
        """
        with keras_private.fresh_names():
            model = self._build_hypermodel(hp)
        if not isinstance(model, keras.Model):
            raise FatalTypeError(
                "Expected the model-building function, or HyperModel.build() to return a valid "
                f"Keras Model instance. Received: {model} of type {type(model)}."
            )
        size = sum(math.prod(v.shape) for v in model.trainable_variables) if model.built else 0
        if self.max_model_size and size > self.max_model_size:
            raise FailedTrialError(f"Oversized model: {size} parameters. Skip model.")
        return model

    def _override_compile_args(self, model: Any) -> None:
        if not (self.optimizer or self.loss or self.metrics):
            return
        optimizer = self.optimizer or getattr(model, "optimizer", None) or "rmsprop"
        if not isinstance(optimizer, str):  # each model needs an optimizer of its own
            optimizer = type(optimizer).from_config(optimizer.get_config())
        known = {"optimizer": optimizer, "loss": self.loss or getattr(model, "loss", None)}
        known["metrics"] = self.metrics or (_metrics_of(model) if model.compiled else None)
        model.compile(**known)

    # -- training ----------------------------------------------------------------------------------

    def run_trial(self, trial: Trial, *args: Any, **kwargs: Any) -> Any:
        """Builds and trains the model of a trial, ``executions_per_trial`` times.

        The other arguments are those of ``search``. Returns a list with the result of the
        hypermodel's ``fit`` for each execution.
        """
        saver = SaveBestEpoch(self.oracle.objective, self._get_checkpoint_fname(trial.trial_id))
        given = kwargs.pop("callbacks", None) or []
        results = []
        for execution in range(self.executions_per_trial):
            own = self._deepcopy_callbacks(given)
            self._configure_tensorboard_dir(own, trial, execution)
            others = [each for each in own if not isinstance(each, keras.callbacks.TensorBoard)]
            self._callback_files.give_to(others, trial.trial_id, execution)
            callbacks, before = [*own, *self._hooks(trial), saver], saver.best_value
            results.append(
                self._build_and_fit_model(trial, *args, **{**kwargs, "callbacks": callbacks})
            )
            if saver.best_value != before:
                self._callback_files.note_best(trial.trial_id, execution)
        return results

    def _hooks(self, trial: Trial) -> list[Any]:
        """The callbacks that call a subclass's hooks; none without hooks, to keep epochs fast."""
        own = {name for name in HANDS_ON if self._has_own(name)}
        if any("batch" in name for name in own):
            return [TunerCallback(self, trial)]
        return [EpochCallback(self, trial)] if any("epoch" in name for name in own) else []

    def _has_own(self, name: str) -> bool:
        """Whether a method is the user's: of a subclass, or set on an object or class later."""
        method = vars(self).get(name, getattr(type(self), name))
        return not str(getattr(method, "__module__", "")).startswith(_OURS)

    def _build_and_fit_model(self, trial: Trial, *args: Any, **kwargs: Any) -> Any:
        hp = trial.hyperparameters
        model = self._try_build(hp)
        with maybe_distribute(self.distribution_strategy):
            results = self.hypermodel.fit(hp, model, *args, **kwargs)
        self._save_build_config(trial.trial_id, model)
        function = f"{type(self.hypermodel).__name__}.fit()"
        validate_trial_results(results, self.oracle.objective, function)
        return results

    def _deepcopy_callbacks(self, callbacks: Any) -> list[Any]:
        listed = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
        try:
            return list(copy.deepcopy(listed))
        except Exception as error:
            raise FatalValueError(
                "All callbacks used during a search should be deep-copyable (since they are reused "
                f"across trials). It is not possible to do `copy.deepcopy({callbacks})`: {error}"
            ) from error

    # Private names of KerasTuner that public scripts override.

    def _configure_tensorboard_dir(
        self, callbacks: list[Any], trial: Trial, execution: int = 0
    ) -> None:
        for callback in callbacks:
            if isinstance(callback, keras.callbacks.TensorBoard):
                folder = self._get_tensorboard_dir(callback.log_dir, trial.trial_id, execution)
                callback.log_dir = str(folder)

    def _get_tensorboard_dir(self, logdir: Any, trial_id: str, execution: int) -> str:
        return os.path.join(str(logdir), str(trial_id), f"execution{execution}")

    # -- hooks -------------------------------------------------------------------------------------

    def on_epoch_begin(self, trial: Trial, model: Any, epoch: int, logs: Any = None) -> None:
        """Called when an epoch begins."""

    def on_epoch_end(self, trial: Trial, model: Any, epoch: int, logs: Any = None) -> None:
        """Called when an epoch has ended."""

    def on_batch_begin(self, trial: Trial, model: Any, batch: int, logs: Any) -> None:
        """Called when a batch begins."""

    def on_batch_end(self, trial: Trial, model: Any, batch: int, logs: Any = None) -> None:
        """Called when a batch has ended."""

    # -- models ------------------------------------------------------------------------------------

    def load_model(self, trial: Trial) -> Any:
        """Returns the compiled model of a trial, with the weights of its best epoch.

        Raises:
            ProjectError: No weights are saved for the trial.
        """
        path = self._get_checkpoint_fname(trial.trial_id)
        if not os.path.isfile(path):
            raise ProjectError(
                f"{path} is missing: trial {trial.trial_id} is {trial.status} and has saved no "
                "weights. Build its model with `tuner.hypermodel.build(trial.hyperparameters)` and "
                "train it."
            )

        def build() -> Any:
            model = self._try_build(trial.hyperparameters)
            self._build_as(model, trial.trial_id)
            if model.built and model.optimizer is not None:
                model.optimizer.build(model.trainable_variables)
            return model

        with search_process(memory=False):
            model, alone = own_model(
                noted_build(build), lambda model: self._load_weights(model, trial.trial_id)
            )
        if not alone:
            to_stderr(
                f"the model of trial {trial.trial_id} shares layers with build, and Keras cannot "
                "copy it. These layers hold its weights from now on"
            )
        return model

    def _build_as(self, model: Any, trial_id: str) -> None:
        """Builds a model without variables for the shapes that a trial was trained with."""
        shapes = self._get_build_config_fname(trial_id)
        if not model.built and os.path.isfile(shapes):
            model.build_from_config(load_json(shapes))
            # Keras runs the ``call`` of a subclassed model, but does not set the model's flag.
            model.built = model.built or bool(model.layers and all(n.built for n in model.layers))

    def _load_weights(self, model: Any, trial_id: str) -> None:
        """Loads the weights of a trial's checkpoint into a model."""
        self._build_as(model, trial_id)
        with warnings.catch_warnings():
            # The checkpoint has no state of an optimizer, as in KerasTuner; Keras warns about that.
            warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
            model.load_weights(self._get_checkpoint_fname(trial_id))

    def _save_build_config(self, trial_id: str, model: Any) -> None:
        with contextlib.suppress(TypeError, RuntimeError):  # shapes that JSON cannot hold
            save_json(self._get_build_config_fname(trial_id), model.get_build_config())

    def _get_checkpoint_fname(self, trial_id: str) -> str:
        return os.path.join(self.get_trial_dir(trial_id), "checkpoint.weights.h5")

    def _get_build_config_fname(self, trial_id: str) -> str:
        return os.path.join(self.get_trial_dir(trial_id), "build_config.json")


def _metrics_of(model: Any) -> Any:
    """The metrics that a model was compiled with; FatalValueError if Keras cannot read them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about lambdas, which are read back at once
            given = model.get_compile_config() or {}
            return keras.saving.deserialize_keras_object(given.get("metrics"))
    except (TypeError, ValueError) as error:
        raise FatalValueError(
            "`optimizer` or `loss` of the tuner compiles the model again, and Keras cannot read "
            f"its metrics back ({error}). Pass them to the tuner, too, as `metrics=`."
        ) from error


@contextlib.contextmanager
def maybe_distribute(distribution_strategy: Any) -> Iterator[None]:
    """A block under a ``tf.distribute.Strategy``, if there is one and Keras' backend can use it."""
    if distribution_strategy is None or keras.backend.backend() != "tensorflow":
        yield
    else:
        with distribution_strategy.scope():
            yield
