"""The errors that users see. Each message names the argument, the value found and the next step."""

from __future__ import annotations

import re

#: Characters of a message, at most, and of its end, which says what to do.
_LONGEST, _END = 600, 220


class PacelineError(Exception):
    """Base class of all errors that Paceline raises on purpose; the command then exits with 2.

    No message is longer than 600 characters, whatever the data hold: its middle is left out.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(shortened(arg) if isinstance(arg, str) else arg for arg in args))


class UsageError(PacelineError):
    """Raised for an argument, or a combination of arguments, that cannot work."""


class SpaceError(PacelineError, ValueError):
    """Raised for a hyperparameter with impossible or conflicting bounds, or a value outside.

    A ValueError too, as in KerasTuner.
    """


class DataError(PacelineError):
    """Raised for data that cannot be trained on: lengths, shapes, labels, NaN."""


class ObjectiveError(PacelineError):
    """Raised for an objective that is not a metric of the model, or whose direction is unknown."""


class SamplerError(PacelineError):
    """Raised for a sampler that is unknown, or that cannot propose trials for this search."""


class StudyError(PacelineError):
    """Raised for a study that is missing, has an impossible name, or conflicts with the storage."""


class StorageError(PacelineError):
    """Raised for a storage that cannot be opened, read or written."""


class BuildError(PacelineError):
    """Raised if ``build(hp)`` raises, or returns something other than a compiled Keras model."""


class ConstraintError(PacelineError):
    """Raised for constraints that cannot be read, or that allow almost nothing of a space."""


class TrialRejected(PacelineError):
    """Raised by ``hp.reject``, and by a constraint that is violated: the trial is not trained.

    Args:
        why: The reason, for the user.
        amounts: Name of a constraint -> by how much it is violated; above 0 if it is violated.

    Attributes:
        amounts: The same.
    """

    def __init__(self, why: str, amounts: dict[str, float] | None = None) -> None:
        super().__init__(why)
        self.amounts = dict(amounts or {"hp.reject": 1.0})


class TrialTimeoutError(PacelineError):
    """Raised if a trial takes longer than ``trial_timeout`` allows."""


class TrialCrashError(PacelineError):
    """Raised if processes die under a trial, or too often under a search."""


class TrialHangError(PacelineError):
    """Raised if a compiled step does not return within ``trial_timeout``; the process cannot
    continue.

    Args:
        what: What has happened, as a sentence without its full stop.
        then: What the user should do; the message ends with it.

    Attributes:
        what: What has happened.
    """

    def __init__(self, what: str, then: str = "") -> None:
        super().__init__(f"{what}. {then}" if then else what)
        self.what = what


class ClusterError(PacelineError):
    """Raised if a cluster has no machine for the search, or none is left."""


class MissingExtraError(PacelineError):
    """Raised if an optional package is missing; the message holds the ``pip install`` line."""


def shortened(text: str) -> str:
    """A message, without its middle if it is too long."""
    if len(text) <= _LONGEST:
        return text
    mark = " [...] "
    return f"{text[: _LONGEST - _END - len(mark)]}{mark}{text[-_END:]}"


#: Keras backend -> the extra that installs it. JAX is always installed.
EXTRAS = {"tensorflow": "tensorflow", "torch": "torch"}


def missing(error: ImportError) -> MissingExtraError | None:
    """Returns the error to raise if Keras cannot be imported without its backend, else None."""
    extra = EXTRAS.get((error.name or "").partition(".")[0])
    if extra is None:
        return None
    return MissingExtraError(
        f"KERAS_BACKEND: Keras needs {extra}, which is not installed. Run pip install "
        f'"paceline[{extra}]", or set KERAS_BACKEND=jax.'
    )


#: What Keras 3 changed: how the error of a script for Keras 2 reads -> the change, as a sentence.
#: docs/migrate/keras_2.md has the same table.
_KERAS_3: tuple[tuple[str, str], ...] = (
    (r"not recognized: .*'lr'|has no attribute 'lr'", "calls `lr` of optimizers `learning_rate`"),
    (
        r"optimizers\.legacy|'LegacyOptimizerWarning'|LegacyOptimizerWarning",
        "has no `keras.optimizers.legacy`: import the optimizer from `keras.optimizers`",
    ),
    (
        r"keras\.wrappers",
        "has `keras.wrappers.SKLearnClassifier` and `SKLearnRegressor` in place of "
        "`keras.wrappers.scikit_learn`",
    ),
    (
        r"'(use_multiprocessing|workers|max_queue_size)'",
        "takes `workers`, `use_multiprocessing` and `max_queue_size` in `keras.utils.PyDataset`, "
        "not in `fit`. For arrays leave them out",
    ),
    (
        r"'(predict_classes|predict_proba)'",
        "has only `model.predict`: `predict(x)` returns probabilities, `predict(x).argmax(-1)` "
        "classes, and `predict(x) > 0.5` the classes of a sigmoid",
    ),
    (
        r"'(fit|evaluate|predict)_generator'",
        "has `fit`, `evaluate` and `predict` for generators, too",
    ),
    (
        r"np_utils|generic_utils",
        "has `keras.utils.to_categorical` and the like in `keras.utils` itself",
    ),
    (
        r"No module named '(tensorflow\.)?keras\.(layers|engine|topology)\b",
        "imports every layer from `keras.layers` itself, and `Model` from `keras`",
    ),
    (
        r"layers' has no attribute 'experimental'|layers\.experimental",
        "has the layers of `keras.layers.experimental.preprocessing` in `keras.layers`",
    ),
    (r"CuDNN(LSTM|GRU)", "has `LSTM` and `GRU`, which use cuDNN by themselves"),
    (
        r"ImageDataGenerator",
        "has `keras.utils.image_dataset_from_directory`, and layers such as `RandomFlip`, in place "
        "of `ImageDataGenerator`",
    ),
    (
        r"preprocessing\.text|'Tokenizer'",
        "has the layer `TextVectorization` in place of `Tokenizer`",
    ),
    (r"multi_gpu_model", "has `keras.distribution`; Paceline spreads trials over all devices"),
    (
        r"keras\.backend' has no attribute|keras\.backend\.tensorflow_backend|'get_session'",
        "has `keras.ops` in place of the functions of `keras.backend`. Read a variable with "
        "`float(v)`, and set it with `v.assign(value)`",
    ),
    (r"'nb_epoch'", "calls `nb_epoch` `epochs`"),
    (
        r"'(samples_per_epoch|nb_val_samples)'",
        "counts batches: use `steps_per_epoch` and `validation_steps`, or leave them out",
    ),
    (r"Dropout\w*\.__init__\(\) missing .*'rate'", "calls `p` of `Dropout` `rate`"),
    (
        r"passed to \w+: \{.*'batch_input_shape'",
        "has `keras.Input(batch_shape=...)` as first layer in place of `batch_input_shape`",
    ),
    (r"tensorflow\.python\.keras", "is `keras`: import nothing from `tensorflow.python.keras`"),
    (
        r"'tensorflow' has no attribute '(Session|ConfigProto|get_default_graph|placeholder)'",
        "runs without sessions and graphs: leave out `tf.Session` and its settings",
    ),
    (
        r"passed to \w+: \{.*'(init|border_mode|W_regularizer|b_regularizer|subsample|"
        r"nb_filter|nb_row|nb_col|bias)'",
        "has other names for it: `init` is `kernel_initializer`, `border_mode` is `padding`, "
        "`W_regularizer` is `kernel_regularizer`, `subsample` is `strides`",
    ),
    (r"missing 1 required positional argument: 'units'", "calls `output_dim` of `Dense` `units`"),
    (r"passed to Model: \{.*'(input|output)'", "calls them `inputs` and `outputs`"),
    (
        r"never been called and thus has no defined (input|output)\b",
        "has `inputs[0]` and `outputs[0]` in place of `input` and `output` of a `Sequential`",
    ),
    (r"argument 'period'", "calls `period` of `ModelCheckpoint` `save_freq`, in batches"),
    (r"argument '(write_grads|batch_size)'", "has no `write_grads` and no `batch_size` there"),
    (r"sample_weight_mode", "finds out `sample_weight_mode` from the shape of the weights"),
    (
        r"must end in `\.(keras|weights\.h5)`|Invalid filepath extension",
        "saves models as `.keras` and weights as `.weights.h5`",
    ),
    (r"argument `reduction`.*auto", "has `sum_over_batch_size` in place of `auto`"),
    (
        r"keras\.(losses|metrics)' has no attribute '(mse|mae|mape|msle)'",
        "has full names, such as `keras.losses.mean_squared_error`",
    ),
    (
        r"'Callback' object has no attribute 'validation_data'|has no attribute 'validation_data'",
        "gives callbacks no `validation_data`: pass it to the callback's constructor",
    ),
    (
        r"['\"](val_)?acc['\"]",
        "names a metric as `compile` does: `metrics=['accuracy']` is `accuracy` and "
        "`val_accuracy`, `metrics=['acc']` is `acc` and `val_acc`",
    ),
)


#: Errors for any other name that Keras 3 no longer has.
_GONE = r"(module|No module named|from) '(tensorflow\.)?keras\.?[\w.]*'"


def keras_3_change(text: str) -> str | None:
    """Returns what Keras 3 changed, as a sentence, if the text of an error shows it; else None."""
    change = next((change for pattern, change in _KERAS_3 if re.search(pattern, text)), None)
    if change is None and re.search(_GONE, text):
        change = "has no such name. The guide From Keras 2 lists what has moved"
    return None if change is None else f"Keras 3 {change}."


def with_keras_3(text: str) -> str:
    """Returns the text of an error, with what Keras 3 changed where that seems to be the reason."""
    change = keras_3_change(text)
    return text if change is None else f"{text.rstrip('.')}. {change}"
