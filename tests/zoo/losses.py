"""Cases by loss, metric and weighting of samples."""

from __future__ import annotations

import keras
from keras import layers, losses, metrics

from zoo.base import case, vary
from zoo.layers import LRS, RATES, adam, softmax
from zoo.samples import (
    N_CLASSES,
    counts,
    regression,
    segments,
    vectors,
    vectors_binary,
    vectors_one_hot,
    vectors_weighted,
)


def _body(hp, *head: layers.Layer) -> keras.Model:
    return keras.Sequential(
        [
            layers.Dense(10, activation="relu"),
            layers.Dropout(hp.Float("dropout", 0.05, 0.5)),
            *head,
        ]
    )


@case(vectors, hparams=vary(lr=LRS, dropout=RATES))
def sparse_from_logits(hp):
    model = _body(hp, layers.Dense(N_CLASSES))
    model.compile(
        adam(hp),
        loss=losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy", metrics.SparseTopKCategoricalAccuracy(2, name="top2")],
    )
    return model


@case(vectors_one_hot, hparams=vary(lr=LRS, dropout=RATES, smooth=[0.05, 0.1, 0.2]))
def label_smoothing(hp):
    model = _body(hp, softmax())
    model.compile(
        adam(hp),
        loss=losses.CategoricalCrossentropy(label_smoothing=hp.Float("smooth", 0.01, 0.5)),
        metrics=["accuracy", metrics.Precision(), metrics.CategoricalCrossentropy()],
    )
    return model


@case(vectors_one_hot, hparams=vary(lr=LRS, dropout=RATES), float64_exact=False)
def class_metrics(hp):
    """Metrics over all samples at once: F1, AUC, both without names of the user's."""
    model = _body(hp, softmax())
    model.compile(
        adam(hp),
        loss="categorical_crossentropy",
        metrics=[metrics.F1Score(average="macro"), metrics.AUC(multi_label=True), "auc"],
    )
    return model


@case(vectors_one_hot, hparams=vary(dropout=RATES, gamma=[1.5, 2.0, 2.5], alpha=[0.2, 0.25, 0.3]))
def categorical_focal(hp):
    model = _body(hp, softmax())
    model.compile(
        keras.optimizers.Adam(3e-3),
        loss=losses.CategoricalFocalCrossentropy(
            alpha=hp.Float("alpha", 0.1, 0.5), gamma=hp.Float("gamma", 0.5, 5.0)
        ),
        metrics=[metrics.CategoricalCrossentropy(), metrics.Recall(class_id=1)],
    )
    return model


@case(
    vectors_binary,
    hparams=vary(lr=LRS, dropout=RATES, smooth=[0.05, 0.1, 0.2]),
    float64_exact=False,
)
def binary(hp):
    """AUC, Precision, Recall and F1 without names of the user's: Keras numbers them."""
    model = _body(hp, layers.Dense(1, activation="sigmoid"))
    model.compile(
        adam(hp),
        loss=losses.BinaryCrossentropy(label_smoothing=hp.Float("smooth", 0.01, 0.5)),
        metrics=[
            "accuracy",
            metrics.AUC(),
            metrics.AUC(curve="PR", num_thresholds=50),
            metrics.Precision(),
            metrics.Recall(thresholds=0.3),
            metrics.F1Score(threshold=0.5, average="micro"),
        ],
    )
    return model


@case(
    vectors_binary, hparams=vary(lr=LRS, dropout=RATES, gamma=[1.5, 2.0, 2.5]), float64_exact=False
)
def binary_focal_logits(hp):
    model = _body(hp, layers.Dense(1))
    model.compile(
        adam(hp),
        loss=losses.BinaryFocalCrossentropy(gamma=hp.Float("gamma", 0.5, 5.0), from_logits=True),
        metrics=[metrics.BinaryAccuracy(threshold=0.0), metrics.AUC(from_logits=True)],
    )
    return model


@case(segments, hparams=vary(lr=LRS, dropout=RATES), float64_exact=False)
def mean_iou(hp):
    """MeanIoU keeps a confusion matrix; it is no mean over samples."""
    model = keras.Sequential(
        [
            layers.Conv2D(6, 3, padding="same", activation="relu"),
            layers.Dropout(hp.Float("dropout", 0.05, 0.5)),
            layers.Conv2D(N_CLASSES, 1, activation="softmax"),
        ]
    )
    model.compile(
        adam(hp),
        loss="sparse_categorical_crossentropy",
        metrics=[metrics.MeanIoU(N_CLASSES, sparse_y_pred=False), "accuracy"],
    )
    return model


@case(regression, hparams=vary(lr=LRS, dropout=RATES, delta=[0.3, 0.5, 1.0]), float64_exact=False)
def huber(hp):
    """Regression metrics, among them two that are no means (R2, RMSE)."""
    model = _body(hp, layers.Dense(2))
    model.compile(
        adam(hp),
        loss=losses.Huber(delta=hp.Float("delta", 0.1, 2.0)),
        metrics=[
            metrics.R2Score(),
            metrics.RootMeanSquaredError(),
            metrics.CosineSimilarity(),
            "mae",
        ],
    )
    return model


@case(counts, hparams=vary(lr=LRS, dropout=RATES), float64_exact=False)
def poisson(hp):
    model = _body(hp, layers.Dense(1, activation="softplus"))
    model.compile(adam(hp), loss="poisson", metrics=["mse", "msle"])
    return model


@case(vectors_one_hot, hparams=vary(dropout=RATES, alpha=[0.3, 0.5, 0.7], beta=[0.7, 0.5, 0.3]))
def tversky(hp):
    """A loss over the whole batch rather than a mean of samples' losses."""
    model = _body(hp, softmax())
    model.compile(
        keras.optimizers.Adam(3e-3),
        loss=losses.Tversky(alpha=hp.Float("alpha", 0.1, 0.9), beta=hp.Float("beta", 0.1, 0.9)),
        metrics=["accuracy", "kl_divergence"],
    )
    return model


@case(vectors_weighted, hparams=vary(lr=LRS, dropout=RATES))
def sample_weight(hp):
    """Weights of samples, some 0, in training and validation; metrics with and without them."""
    model = _body(hp, softmax())
    model.compile(
        adam(hp),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        weighted_metrics=[
            metrics.SparseCategoricalAccuracy(name="weighted_accuracy"),
            metrics.SparseCategoricalCrossentropy(name="weighted_entropy"),
        ],
    )
    return model


@case(vectors, hparams=vary(lr=LRS, dropout=RATES), fit={"class_weight": {0: 0.5, 1: 2.0, 3: 1.5}})
def class_weight(hp):
    """class_weight through fit: class 2 is not named and counts 1; validation is unweighted."""
    model = _body(hp, softmax())
    model.compile(
        adam(hp),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        weighted_metrics=["accuracy"],
    )
    return model


@case(
    vectors,
    hparams=vary(lr=LRS, dropout=RATES),
    validation=False,
    fit={"validation_split": 0.3},
)
def validation_split(hp):
    """The last 15 of the 50 samples validate."""
    model = _body(hp, softmax())
    model.compile(adam(hp), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@case(vectors, hparams=vary(lr=LRS, dropout=RATES), validation=False)
def no_validation(hp):
    """No validation data at all, and no metric but the loss."""
    model = _body(hp, softmax())
    model.compile(adam(hp), loss="sparse_categorical_crossentropy")
    return model
