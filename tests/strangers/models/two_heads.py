# Two inputs by name, two outputs by name, losses, weights and metrics by output.
import numpy as np
from tensorflow import keras
from tensorflow.keras import layers
from keras_tuner import RandomSearch, Objective

rng = np.random.RandomState(0)
x = {"image": rng.rand(120, 8, 8, 1), "meta": rng.rand(120, 5)}
y = {"kind": keras.utils.to_categorical(rng.randint(0, 3, 120), 3), "price": rng.rand(120, 1)}


def build(hp):
    image = keras.Input((8, 8, 1), name="image")
    meta = keras.Input((5,), name="meta")
    a = layers.Conv2D(hp.Int("filters", 2, 6, 2), 3, activation="relu")(image)
    a = layers.Flatten()(a)
    b = layers.Dense(hp.Int("meta_units", 4, 8, 4), activation="relu")(meta)
    both = layers.Concatenate()([a, b])
    kind = layers.Dense(3, activation="softmax", name="kind")(both)
    price = layers.Dense(1, name="price")(both)
    model = keras.Model(inputs=[image, meta], outputs=[kind, price])
    model.compile(
        optimizer="adam",
        loss={"kind": "categorical_crossentropy", "price": "mse"},
        loss_weights={"kind": 1.0, "price": hp.Float("price_weight", 0.1, 1.0)},
        metrics={"kind": ["accuracy"], "price": ["mae"]},
    )
    return model


tuner = RandomSearch(
    build, Objective("val_kind_accuracy", "max"), max_trials=3, seed=5, project_name="heads"
)
tuner.search(x, y, epochs=2, validation_split=0.25, batch_size=30)
trial = tuner.oracle.get_best_trials(1)[0]
names = sorted(name for name in trial.metrics.metrics if name.startswith("val_"))
predicted = tuner.get_best_models()[0].predict(x, verbose=0)
print("RESULT", names, [p.shape for p in predicted])
