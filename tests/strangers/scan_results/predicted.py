# The best model of a scan: Predict, Evaluate, best_model.
import numpy as np
import talos
from talos import Evaluate, Predict
from tensorflow import keras
from sklearn.datasets import load_iris

x, y = load_iris(return_X_y=True)
order = np.random.RandomState(0).permutation(len(x))
x, y = x[order], keras.utils.to_categorical(y[order])


def model_of(x_train, y_train, x_val, y_val, params):
    model = keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(params["units"], activation="relu"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile("adam", "categorical_crossentropy", metrics=["acc"])
    out = model.fit(x_train, y_train, validation_data=(x_val, y_val), epochs=3, verbose=0)
    return out, model


scan = talos.Scan(x, y, {"units": [8, 16, 24]}, model_of, "predicted", seed=2)
predictions = Predict(scan).predict(x[:10], metric="val_acc", asc=False)
classes = Predict(scan).predict_classes(x[:10], metric="val_acc", asc=False, task="multi_class")
scores = Evaluate(scan).evaluate(x, y, task="multi_class", metric="val_acc", folds=3)
best = scan.best_model(metric="val_loss", asc=True)
print("RESULT", predictions.shape, len(classes), len(scores), best.predict(x[:2], verbose=0).shape)
