"""``talos.autom8``: a params dictionary, a model function and a scan for a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from paceline.compat.talos import metrics
from paceline.compat.talos.callbacks import ExperimentLog
from paceline.compat.talos.errors import TalosParamsError
from paceline.compat.talos.evaluate import classes, evaluate_models, measure, outputs
from paceline.compat.talos.model import hidden_layers, output_layer, trained
from paceline.compat.talos.scan import Scan

_TASKS = {"multiclass": "multi_class", "multilabel": "multi_label", "regression": "continuous"}
_LOSSES = {
    "binary": ["binary_crossentropy", "log_cosh"],
    "multi_class": ["sparse_categorical_crossentropy"],
    "multi_label": ["categorical_crossentropy"],
    "continuous": ["mae"],
}
_LAST = {
    "binary": ["sigmoid"],
    "multi_class": ["softmax"],
    "multi_label": ["softmax"],
    "continuous": [None],
}
_NETWORKS = ["dense", "simplernn", "lstm", "bidirectional_lstm", "conv1d"]


class AutoParams:
    """A params dictionary for ``AutoModel``.

    Args:
        params: A dictionary to begin with; None: an empty one.
        task: "binary", "multi_class", "multi_label" or "continuous".
        replace: Whether parameters that ``params`` has are replaced.
        auto: Whether all parameters are added at once.
        network: Whether recurrent and convolutional networks are among the values.
        resample_params: Number of values of each parameter, or False for all of them.

    Attributes:
        params: The dictionary.
    """

    def __init__(
        self,
        params: dict[str, Any] | None = None,
        task: str = "binary",
        replace: bool = True,
        auto: bool = True,
        network: bool = True,
        resample_params: int | bool = 4,
        backend: str = "keras",
    ) -> None:
        self.params = {} if params is None else params
        self._task, self._replace, self._network = _task(task), replace, network
        if auto:
            self._fill()
        if resample_params is not False:
            self.resample_params(int(resample_params))

    def _fill(self) -> None:
        self.shapes()
        self.layers()
        self.dropout()
        self.optimizers()
        self.activations()
        self.neurons()
        self.losses()
        self.batch_size()
        self.epochs()
        self.kernel_initializers()
        self.lr()
        self.networks("auto" if self._network else ["dense"])
        self.last_activations()

    def shapes(self, shapes: Any = "auto") -> None:
        """Adds shapes of networks."""
        self._put("shapes", shapes, ["triangle", "funnel", "brick"])

    def shapes_slope(
        self, min_slope: float = 0, max_slope: float = 0.6, steps: float = 0.1
    ) -> None:
        """Adds shapes given by how much narrower each layer is than the one before."""
        self._put("shapes", np.arange(min_slope, max_slope, steps).tolist())

    def layers(self, min_layers: int = 0, max_layers: int = 6, steps: int = 1) -> None:
        """Adds numbers of hidden layers."""
        self._put("hidden_layers", list(range(min_layers, max_layers, steps)))

    def dropout(
        self, min_dropout: float = 0, max_dropout: float = 0.85, steps: float = 0.1
    ) -> None:
        """Adds dropout rates."""
        self._put("dropout", np.round(np.arange(min_dropout, max_dropout, steps), 2).tolist())

    def optimizers(self, optimizers: Any = "auto") -> None:
        """Adds classes of optimizers."""
        kinds = keras.optimizers
        self._put("optimizer", optimizers, [kinds.Adam, kinds.Adagrad, kinds.SGD])

    def activations(self, activations: Any = "auto") -> None:
        """Adds activations of hidden layers."""
        self._put("activation", activations, ["relu", "elu"])

    def losses(self, losses: Any = "auto") -> None:
        """Adds losses."""
        self._put("losses", losses, _LOSSES[self._task])

    def neurons(
        self, min_neuron: int = 8, max_neuron: int | None = None, steps: int | None = None
    ) -> None:
        """Adds widths of the first layer; without bounds, powers of two from 8 to 1,024."""
        self._spread("first_neuron", min_neuron, max_neuron, steps, [2**i for i in range(3, 11)])

    def batch_size(
        self, min_size: int = 8, max_size: int | None = None, steps: int | None = None
    ) -> None:
        """Adds batch sizes; without bounds, from 2 to 128."""
        values = [int(2 ** (i / 2)) for i in range(3, 15)]
        self._spread("batch_size", min_size, max_size, steps, values)

    def epochs(
        self, min_epochs: int = 50, max_epochs: int | None = None, steps: int | None = None
    ) -> None:
        """Adds numbers of epochs; without bounds, from 52 to 178."""
        values = [int(2 ** (i / 2)) + 50 for i in range(3, 15)]
        self._spread("epochs", min_epochs, max_epochs, steps, values)

    def kernel_initializers(self, kernel_inits: Any = "auto") -> None:
        """Adds initializers."""
        names = "he_normal he_uniform lecun_normal glorot_uniform glorot_normal"
        names += " random_uniform random_normal"
        self._put("kernel_initializer", kernel_inits, names.split())

    def lr(self, learning_rates: Any = "auto") -> None:
        """Adds learning rates, as ``lr_normalizer`` takes them."""
        fine = np.round(np.arange(0.01, 0.2, 0.02), 3).tolist()
        coarse = np.round(np.arange(0.2, 1, 0.2), 2).tolist()
        self._put("lr", learning_rates, [*fine, *coarse, *range(1, 11)])

    def networks(self, networks: Any = "auto") -> None:
        """Adds kinds of the first layer."""
        self._put("network", networks, _NETWORKS)

    def last_activations(self, last_activations: Any = "auto") -> None:
        """Adds activations of the last layer."""
        self._put("last_activation", last_activations, _LAST[self._task])

    def resample_params(self, n: int) -> None:
        """Keeps n values of each parameter, spread evenly over all its values."""
        if n < 1:
            raise TalosParamsError(
                f"resample_params must be a positive integer, got {n!r}. Pass 1 or more."
            )
        for name, values in self.params.items():
            at = np.linspace(0, len(values) - 1, min(n, len(values)), dtype=int)
            self.params[name] = [values[i] for i in at]

    def _put(self, name: str, values: Any, auto: list[Any] | None = None) -> None:
        if isinstance(values, str) and values == "auto":
            values = list(auto or ())
        if self._replace or name not in self.params:
            self.params[name] = values

    def _spread(
        self, name: str, low: int, high: int | None, steps: int | None, auto: list[int]
    ) -> None:
        if (high is None) != (steps is None):
            raise TalosParamsError(
                f"{name} needs the greatest value and steps, and only one was passed. Pass both, "
                "or neither."
            )
        self._put(name, auto if high is None else list(range(low, high, steps or 1)))


class AutoModel:
    """A model function for a task.

    Args:
        task: "binary", "multi_class", "multi_label" or "continuous".
        experiment_name: Folder in which the epochs of each permutation are logged.
        metric: Further metrics.

    Attributes:
        model: The function, for ``Scan``.
    """

    def __init__(
        self, task: str, experiment_name: str, metric: Any = None, backend: str = "keras"
    ) -> None:
        self.task, self.experiment_name = _task(task), experiment_name
        first = metrics.mae if self.task == "continuous" else metrics.f1score
        self.metrics = [first, "acc", *(metric or ())]
        self.model: Callable[..., Any] = self._model

    def _model(self, x_train: Any, y_train: Any, x_val: Any, y_val: Any, params: Any) -> Any:
        layers = keras.layers
        model: Any = keras.Sequential([keras.Input(np.shape(x_train)[1:])])
        network, width = params.get("network", "dense"), params["first_neuron"]
        sequence = network != "dense"
        if sequence and len(np.shape(x_train)) == 2:
            model.add(layers.Reshape((np.shape(x_train)[1], 1)))
        if network == "conv1d":
            model.add(layers.Conv1D(width, 3, padding="same", activation="relu"))
            model.add(layers.Flatten())
        elif network == "bidirectional_lstm":
            model.add(layers.Bidirectional(layers.LSTM(width)))
        elif network in ("lstm", "simplernn"):
            model.add((layers.LSTM if network == "lstm" else layers.SimpleRNN)(width))
        elif network == "dense":
            start = params["kernel_initializer"]
            model.add(layers.Dense(width, activation="relu", kernel_initializer=start))
        else:
            raise TalosParamsError(
                f"network must be one of {', '.join(_NETWORKS)}, got {network!r}."
            )
        model.add(layers.Dropout(params["dropout"]))
        activation, last = output_layer(self.task, params["last_activation"], y_train, y_val)
        hidden_layers(model, params, last)
        model.add(layers.Dense(last, activation, kernel_initializer=params["kernel_initializer"]))
        log = ExperimentLog(self.experiment_name, params)
        return trained(model, params, self.metrics, (x_train, y_train, x_val, y_val), [log])


class AutoScan:
    """A scan for a task.

    Args:
        task: "binary", "multi_class", "multi_label" or "continuous".
        experiment_name: Folder of the experiment.
        max_param_values: Number of values of each parameter, if ``start`` gets no ``params``.
    """

    def __init__(
        self, task: str, experiment_name: str, max_param_values: int | None = None
    ) -> None:
        self.task, self.experiment_name = task, experiment_name
        self.max_param_values = max_param_values

    def start(self, x: Any, y: Any, **arguments: Any) -> Scan:
        """Runs the scan and returns it.

        Args:
            x: Features.
            y: Targets.
            **arguments: Further arguments of ``Scan``.
        """
        if "params" not in arguments:
            most = 4 if self.max_param_values is None else self.max_param_values
            arguments["params"] = AutoParams(task=self.task, resample_params=most).params
        if "model" not in arguments:
            arguments["model"] = AutoModel(self.task, self.experiment_name).model
        return Scan(x, y, experiment_name=self.experiment_name, **arguments)


def AutoPredict(  # noqa: N802 - what users write
    scan_object: Scan,
    x_val: Any,
    y_val: Any,
    x_pred: Any,
    task: str,
    metric: str = "val_acc",
    n_models: int = 10,
    folds: int = 5,
    shuffle: bool = True,
    asc: bool = False,
    custom_objects: dict[str, Any] | None = None,
    model_factory: Any = None,
    average: str | None = None,
) -> Scan:
    """Predicts ``x_pred`` with the model of a scan that scores best on ``x_val`` and ``y_val``.

    Returns the scan, with ``preds_model``, ``preds_probabilities``, ``preds_classes`` and
    ``preds_parameters``. The other arguments are those of ``Scan.evaluate_models``.
    """
    given: tuple[Any, ...] = (x_val, y_val, task, n_models, metric, folds, shuffle, asc)
    evaluate_models(scan_object, *given, custom_objects=custom_objects, average=average)
    row = scan_object.best_row(f"eval_{measure(task)}_mean", _task(task) == "continuous")
    model = scan_object.activate(row, custom_objects=custom_objects)
    found = outputs(model, x_pred)
    vars(scan_object).update(
        preds_model=model,
        preds_probabilities=found,
        preds_classes=classes(found, task),
        preds_parameters=scan_object.data.loc[row],
    )
    return scan_object


def _task(task: str) -> str:
    task = _TASKS.get(task, task)
    if task not in _LOSSES:
        raise TalosParamsError(f"task must be one of {', '.join(_LOSSES)}, got {task!r}.")
    return task
