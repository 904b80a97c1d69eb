# Optuna's Keras example: layers and rates, a score after training.
import optuna
from tensorflow import keras
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)
x = (x[:300] / 16).astype("float32")
y = y[:300]


def objective(trial):
    keras.backend.clear_session()
    model = keras.Sequential([keras.layers.Input((64,))])
    for i in range(trial.suggest_int("n_layers", 1, 2)):
        units = trial.suggest_int(f"n_units_l{i}", 8, 32, log=True)
        model.add(keras.layers.Dense(units, activation="relu"))
        model.add(keras.layers.Dropout(trial.suggest_float(f"dropout_{i}", 0.0, 0.3)))
    model.add(keras.layers.Dense(10, activation="softmax"))
    rate = trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)
    model.compile(
        loss="sparse_categorical_crossentropy",
        optimizer=keras.optimizers.RMSprop(learning_rate=rate),
        metrics=["accuracy"],
    )
    model.fit(x[:200], y[:200], batch_size=32, epochs=2, verbose=0)
    score = model.evaluate(x[200:], y[200:], verbose=0)
    return score[1]


study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=1))
study.optimize(objective, n_trials=4, timeout=600)
tried = [{k: round(v, 6) for k, v in t.params.items()} for t in study.trials]
print("RESULT", sorted(map(str, tried)))
