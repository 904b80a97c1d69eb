# Deploy writes an archive, Restore reads it.
import os
import numpy as np
import talos
from tensorflow import keras

x, y = np.random.RandomState(0).rand(60, 4), np.random.RandomState(1).randint(0, 2, 60)


def model_of(x_train, y_train, x_val, y_val, params):
    model = keras.Sequential([keras.layers.Input((4,))])
    model.add(keras.layers.Dense(params["units"], activation="relu"))
    model.add(keras.layers.Dense(1, activation="sigmoid"))
    model.compile("adam", "binary_crossentropy", metrics=["acc"])
    out = model.fit(x_train, y_train, validation_data=(x_val, y_val), epochs=1, verbose=0)
    return out, model


scan = talos.Scan(x=x, y=y, params={"units": [4, 8]}, model=model_of, experiment_name="deployed")
talos.Deploy(scan_object=scan, model_name="deployed_model", metric="val_loss", asc=True)
restored = talos.Restore("deployed_model.zip")
predicted = restored.model.predict(np.asarray(x[:3]), verbose=0)
print("RESULT", os.path.exists("deployed_model.zip"), predicted.shape, len(restored.results))
