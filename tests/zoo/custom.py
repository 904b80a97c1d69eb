"""Cases of what users write themselves: models, layers, losses, metrics, train steps."""

from __future__ import annotations

import jax
import keras
from keras import layers, metrics, ops

from zoo.base import case, vary
from zoo.layers import LRS, RATES, adam, classifier, softmax
from zoo.samples import N_CLASSES, regression, vectors, vectors_one_hot


def mean(x, axis=None):
    """The mean in x's own precision; ``ops.mean`` computes in float32 under float64 too."""
    return ops.sum(x, axis=axis) / (x.size if axis is None else x.shape[axis])


class Tower(keras.Model):
    """A subclassed model with a loop and a ``training`` argument of its own."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.blocks = [layers.Dense(8, activation="relu") for _ in range(2)]
        self.drop = layers.Dropout(rate)
        self.head = softmax()

    def call(self, inputs, training=False):
        x = inputs
        for block in self.blocks:
            x = self.drop(block(x), training=training)
        if training:
            x = x * 0.9
        return self.head(x)


@case(vectors, hparams=vary(lr=LRS, dropout=RATES))
def subclassed(hp):
    return classifier(Tower(hp.Float("dropout", 0.05, 0.5)), adam(hp))


class Gate(layers.Layer):
    """A custom layer: own weights, own state, a loss of its own and a float constant."""

    def __init__(self, strength: float, **kwargs) -> None:
        super().__init__(**kwargs)
        self.strength = strength

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="scale")
        self.calls = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="calls", dtype="int32"
        )
        self.mean = self.add_weight(
            shape=(input_shape[-1],), initializer="zeros", trainable=False, name="mean"
        )

    def call(self, inputs, training=False):
        if training:
            self.calls.assign_add(1)
            self.mean.assign(0.9 * self.mean + 0.1 * mean(inputs, axis=0))
        self.add_loss(self.strength * mean(ops.square(self.scale)))
        return (inputs - self.mean) * ops.sigmoid(self.scale)


@case(vectors, hparams=vary(lr=LRS, strength=[0.01, 0.1, 1.0]))
def custom_layer(hp):
    model = keras.Sequential(
        [
            layers.Dense(10, activation="relu"),
            Gate(hp.Float("strength", 1e-3, 2.0)),
            softmax(),
        ]
    )
    return classifier(model, adam(hp))


class Jitter(layers.Layer):
    """Own randomness through a SeedGenerator, in training and in validation."""

    def __init__(self, width: float, **kwargs) -> None:
        super().__init__(**kwargs)
        self.width = width
        self.seeds = keras.random.SeedGenerator(1337)
        self.more_seeds = keras.random.SeedGenerator()

    def call(self, inputs, training=False):
        noise = keras.random.uniform(ops.shape(inputs), -1.0, 1.0, seed=self.seeds)
        if training:
            noise = noise + keras.random.normal(ops.shape(inputs), seed=self.more_seeds)
        return inputs + self.width * noise


@case(vectors, hparams=vary(lr=LRS, width=[0.01, 0.05, 0.1]))
def seed_generator(hp):
    """One generator with the user's seed, one with a drawn seed; noise also in validation."""
    model = keras.Sequential(
        [
            layers.Dense(10, activation="relu"),
            Jitter(hp.Float("width", 1e-3, 0.5)),
            softmax(),
        ]
    )
    return classifier(model, adam(hp))


@case(vectors, hparams=vary(lr=LRS, gamma=[1.5, 2.0, 2.5]))
def custom_loss(hp):
    """A focal loss as a plain function that closes over gamma."""
    gamma = hp.Float("gamma", 0.5, 5.0)

    def focal(y_true, y_pred):
        p = ops.take_along_axis(y_pred, ops.cast(ops.reshape(y_true, (-1, 1)), "int32"), axis=-1)
        p = ops.clip(p[:, 0], 1e-7, 1.0)
        return -ops.power(1.0 - p, gamma) * ops.log(p)

    model = keras.Sequential([layers.Dense(10, activation="relu"), softmax()])
    model.compile(adam(hp), loss=focal, metrics=["accuracy"])
    return model


class Quantile(keras.losses.Loss):
    """Pinball loss of quantile ``tau``."""

    def __init__(self, tau: float) -> None:
        super().__init__(name="quantile")
        self.tau = tau

    def call(self, y_true, y_pred):
        error = y_true - y_pred
        return mean(ops.maximum(self.tau * error, (self.tau - 1.0) * error), axis=-1)


class LargestError(keras.metrics.Metric):
    """Largest absolute error so far, above a threshold, and how often: two states, one maximum."""

    def __init__(self, threshold: float, name: str = "largest") -> None:
        super().__init__(name=name)
        self.threshold = threshold
        self.largest = self.add_variable(shape=(), initializer="zeros", name="largest")
        self.above = self.add_variable(shape=(), initializer="zeros", name="above")

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = ops.abs(ops.cast(y_true, self.dtype) - ops.cast(y_pred, self.dtype))
        self.largest.assign(ops.maximum(self.largest, ops.max(error)))
        self.above.assign_add(ops.sum(ops.cast(error > self.threshold, self.dtype)))

    def result(self):
        return {"largest": self.largest.value, "above": self.above.value}


@case(regression, hparams=vary(lr=LRS, tau=[0.3, 0.5, 0.7], threshold=[0.2, 0.5, 1.0]))
def custom_loss_and_metric(hp):
    """A loss class and a metric that is no mean and returns a dict of two."""
    model = keras.Sequential([layers.Dense(10, activation="relu"), layers.Dense(2)])
    model.compile(
        adam(hp),
        loss=Quantile(hp.Float("tau", 0.05, 0.95)),
        metrics=[LargestError(hp.Float("threshold", 0.1, 2.0))],
    )
    return model


class OwnTrainStep(keras.Model):
    """Keras' guide to custom training on JAX: state in, logs and state out; two loss trackers."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.body = layers.Dense(10, activation="relu")
        self.drop = layers.Dropout(0.2)
        self.head = layers.Dense(N_CLASSES)
        self.temperature = temperature
        self.mean_loss = keras.metrics.Mean(name="loss")
        self.hits = keras.metrics.SparseCategoricalAccuracy(name="hits")

    @property
    def metrics(self):
        return [self.mean_loss, self.hits]

    def call(self, x, training=False):
        return self.head(self.drop(self.body(x), training=training))

    def _loss(self, trainable, non_trainable, x, y, training):
        logits, non_trainable = self.stateless_call(trainable, non_trainable, x, training=training)
        losses = keras.losses.sparse_categorical_crossentropy(
            y, logits / self.temperature, from_logits=True
        )
        return mean(losses), (logits, non_trainable)

    def _logs(self, metrics_variables, loss, y, logits):
        n = len(self.mean_loss.variables)
        of_loss = self.mean_loss.stateless_update_state(metrics_variables[:n], loss)
        of_hits = self.hits.stateless_update_state(metrics_variables[n:], y, logits)
        logs = {
            "loss": self.mean_loss.stateless_result(of_loss),
            "hits": self.hits.stateless_result(of_hits),
        }
        return logs, [*of_loss, *of_hits]

    def train_step(self, state, data):
        trainable, non_trainable, optimizer_variables, metrics_variables = state
        x, y = data[:2]
        gradient = jax.value_and_grad(self._loss, has_aux=True)
        (loss, (logits, non_trainable)), grads = gradient(trainable, non_trainable, x, y, True)
        trainable, optimizer_variables = self.optimizer.stateless_apply(
            optimizer_variables, grads, trainable
        )
        logs, metrics_variables = self._logs(metrics_variables, loss, y, logits)
        return logs, (trainable, non_trainable, optimizer_variables, metrics_variables)

    def test_step(self, state, data):
        trainable, non_trainable, metrics_variables = state
        x, y = data[:2]
        loss, (logits, non_trainable) = self._loss(trainable, non_trainable, x, y, False)
        logs, metrics_variables = self._logs(metrics_variables, loss, y, logits)
        return logs, (trainable, non_trainable, metrics_variables)


@case(vectors, hparams=vary(lr=LRS, temperature=[0.5, 1.0, 2.0]))
def custom_train_step(hp):
    """Unlike Keras' loss, the mean here is over batches, not over samples."""
    model = OwnTrainStep(hp.Float("temperature", 0.1, 5.0))
    model.compile(adam(hp))
    return model


class ExtraLog(OwnTrainStep):
    """Returns a log that is no metric, so Keras reports the last batch's logs of an epoch."""

    def train_step(self, state, data):
        logs, state = super().train_step(state, data)
        norm = ops.sqrt(sum(ops.sum(ops.square(v)) for v in state[0]))
        return {**logs, "norm": norm}, state


@case(vectors, hparams=vary(lr=LRS, temperature=[0.5, 1.0, 2.0]))
def custom_train_step_extra_log(hp):
    """The log "norm" is no metric: the epoch's value is the last batch's, validation has none."""
    model = ExtraLog(hp.Float("temperature", 0.1, 5.0))
    model.compile(adam(hp))
    return model


class OwnComputeLoss(keras.Model):
    """Overrides compute_loss: the stock train_step with a penalty of the user's on top."""

    def __init__(self, penalty: float) -> None:
        super().__init__()
        self.body = layers.Dense(8, activation="relu")
        self.head = softmax()
        self.penalty = penalty

    def call(self, x):
        return self.head(self.body(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + self.penalty * mean(ops.square(y_pred))


@case(vectors, hparams=vary(lr=LRS, penalty=[0.01, 0.1, 0.5]))
def custom_compute_loss(hp):
    return classifier(OwnComputeLoss(hp.Float("penalty", 1e-3, 1.0)), adam(hp))


@case(vectors, hparams=vary(lr=LRS, dropout=RATES))
def steps_per_execution(hp):
    """steps_per_execution above 1: Keras' logs are those of the last step in each bundle."""
    model = keras.Sequential(
        [layers.Dense(8, "relu"), layers.Dropout(hp.Float("dropout", 0.05, 0.5)), softmax()]
    )
    model.compile(
        adam(hp),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=3,
    )
    return model


@case(vectors, hparams=vary(lr=LRS, dropout=RATES))
def without_jit(hp):
    """Keras trains it without compiling; packs compile it, and say so."""
    model = keras.Sequential(
        [layers.Dense(8, "relu"), layers.Dropout(hp.Float("dropout", 0.05, 0.5)), softmax()]
    )
    model.compile(
        adam(hp), loss="sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False
    )
    return model


@case(vectors_one_hot, hparams=vary(lr=LRS, dropout=RATES))
def vector_metric(hp):
    """F1Score's own default is one number per class: an epoch's value is an array."""
    model = keras.Sequential(
        [layers.Dense(8, "relu"), layers.Dropout(hp.Float("dropout", 0.05, 0.5)), softmax()]
    )
    model.compile(
        adam(hp),
        loss="categorical_crossentropy",
        metrics=["accuracy", metrics.F1Score(), metrics.Recall(thresholds=[0.2, 0.4])],
    )
    return model


class KernelPenalty(keras.Sequential):
    """Reads its own variables in ``compute_loss``, which Keras gives it."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + 0.01 * ops.sum(ops.square(self.layers[0].kernel))


@case(vectors, hparams=vary(lr=LRS))
def compute_loss_of_a_kernel(hp):
    return classifier(KernelPenalty([layers.Dense(8, activation="relu"), softmax()]), adam(hp))
