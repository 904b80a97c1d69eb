# Residual blocks, balanced class weights of scikit-learn, F1Score and AUC, trials sorted by hand.
import keras
import keras_tuner as kt
import numpy as np
from sklearn.utils.class_weight import compute_class_weight

rng = np.random.RandomState(12)
x = rng.rand(150, 20, 2)
kinds = rng.choice(3, 150, p=[0.6, 0.3, 0.1])
y = keras.utils.to_categorical(kinds, 3)
weights = compute_class_weight(class_weight="balanced", classes=np.unique(kinds), y=kinds)
class_weights = dict(enumerate(weights))


def residual_block(x, filters, kernel_size):
    shortcut = keras.layers.Conv1D(filters, 1, padding="same")(x)
    x = keras.layers.SeparableConv1D(filters, kernel_size, padding="same")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Activation("swish")(x)
    x = keras.layers.SpatialDropout1D(0.1)(x)
    return keras.layers.Add()([x, shortcut])


def get_build_model(shape, classes):
    def build_model(hp):
        inputs = keras.layers.Input(shape)
        h = inputs
        for block in range(hp.Int("blocks", 1, 2)):
            h = residual_block(h, hp.Int("filters", 4, 8, step=4), hp.Choice("kernel_size", [3, 5]))
        if hp.Choice("pooling", ["avg", "max"]) == "avg":
            h = keras.layers.GlobalAveragePooling1D()(h)
        else:
            h = keras.layers.GlobalMaxPooling1D()(h)
        model = keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(h))
        model.compile(
            optimizer=keras.optimizers.Nadam(
                hp.Float("lr", 1e-3, 1e-2, sampling="log"), beta_1=0.95
            ),
            loss="categorical_crossentropy",
            metrics=[
                "accuracy",
                keras.metrics.F1Score(average="macro"),
                keras.metrics.AUC(name="auc", multi_label=True),
                keras.metrics.Precision(class_id=2, name="precision_rare"),
            ],
        )
        return model

    return build_model


tuner = kt.Hyperband(
    get_build_model((20, 2), 3),
    objective=kt.Objective("val_f1_score", direction="max"),
    max_epochs=3,
    seed=1,
    directory="kappa",
    project_name="std",
)
tuner.search(
    x, y, epochs=3, validation_split=0.3, class_weight=class_weights, batch_size=16, verbose=0
)
best = tuner.oracle.get_best_trials(num_trials=2000)
aucs = [t.metrics.get_best_value("val_auc") for t in best]
index = -max((value, -i) for i, value in enumerate(aucs))[1]
model = get_build_model((20, 2), 3)(best[index].hyperparameters)
print("RESULT", len(best), model.count_params() > 0, [s.status for s in best[:2]])
print("RESULT", sorted(best[0].metrics.metrics))
