# A data frame, a scaler, a hypermodel class with arguments, callbacks by name.
import pandas as pd
import tensorflow as tf
from tensorflow.keras.callbacks import EarlyStopping, ReduceLROnPlateau
from tensorflow.keras.layers import BatchNormalization, Dense, Dropout, Input
from tensorflow.keras.models import Sequential
from tensorflow.keras.regularizers import l2
import keras_tuner as kt
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

data = load_breast_cancer(as_frame=True)
X, y = data.data, data.target
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=42)
scaler = StandardScaler()
X_train = pd.DataFrame(scaler.fit_transform(X_train), columns=X.columns)
X_test = pd.DataFrame(scaler.transform(X_test), columns=X.columns)


class TabularHyperModel(kt.HyperModel):
    def __init__(self, n_features, n_out=1):
        self.n_features = n_features
        self.n_out = n_out

    def build(self, hp):
        model = Sequential()
        model.add(Input(shape=(self.n_features,)))
        model.add(Dense(hp.Choice("units", [8, 16]), kernel_regularizer=l2(1e-4)))
        if hp.Boolean("batch_norm"):
            model.add(BatchNormalization())
        model.add(Dropout(hp.Float("dropout", 0.0, 0.5, step=0.25)))
        model.add(Dense(self.n_out, activation="sigmoid"))
        optimizer = hp.Choice("optimizer", ["adam", "rmsprop", "sgd"])
        model.compile(
            optimizer=optimizer,
            loss="binary_crossentropy",
            metrics=["accuracy", tf.keras.metrics.AUC(name="auc")],
        )
        return model


tuner = kt.BayesianOptimization(
    TabularHyperModel(n_features=X_train.shape[1]),
    objective=kt.Objective("val_auc", direction="max"),
    max_trials=4,
    num_initial_points=2,
    alpha=1e-3,
    beta=2.6,
    seed=42,
    overwrite=True,
    directory="bayes",
    project_name="tabular",
)
callbacks = [
    EarlyStopping(monitor="val_auc", mode="max", patience=2, restore_best_weights=True),
    ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1),
]
tuner.search(
    X_train,
    y_train,
    validation_data=(X_test, y_test),
    epochs=3,
    batch_size=64,
    callbacks=callbacks,
    verbose=0,
)
best = tuner.get_best_models(num_models=1)[0]
scores = best.evaluate(X_test, y_test, verbose=0)
predictions = (best.predict(X_test, verbose=0) > 0.5).astype("int32")
print("RESULT", len(scores), predictions.shape, sorted(tuner.get_best_hyperparameters()[0].values))
