# ImageDataGenerator of Keras 2, which TensorFlow still has, with steps of an epoch.
import numpy as np
from tensorflow.keras.preprocessing.image import ImageDataGenerator
from tensorflow.keras.layers import Conv2D, Dense, Flatten, MaxPooling2D
from tensorflow.keras.models import Sequential
import keras_tuner as kt

rng = np.random.RandomState(0)
x, y = rng.rand(64, 12, 12, 1), rng.randint(0, 2, 64)
train_datagen = ImageDataGenerator(horizontal_flip=True, width_shift_range=0.1)
train_generator = train_datagen.flow(x[:48], y[:48], batch_size=16, seed=1)
validation_generator = ImageDataGenerator().flow(x[48:], y[48:], batch_size=16, shuffle=False)


def build_model(hp):
    model = Sequential(
        [
            Conv2D(hp.Int("filters", 4, 8, 4), 3, activation="relu", input_shape=(12, 12, 1)),
            MaxPooling2D(),
            Flatten(),
            Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(optimizer="rmsprop", loss="binary_crossentropy", metrics=["accuracy"])
    return model


tuner = kt.RandomSearch(build_model, objective="val_accuracy", max_trials=2, seed=1)
tuner.search(
    train_generator,
    steps_per_epoch=3,
    epochs=2,
    validation_data=validation_generator,
    validation_steps=1,
)
print("RESULT", len(tuner.oracle.trials), tuner.get_best_models()[0].count_params() > 0)
