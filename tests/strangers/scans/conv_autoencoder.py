# A convolutional autoencoder: x is y, a share of the space, plots of the analysis in files.
import os
import matplotlib.pyplot as plt
import numpy as np
import talos
from tensorflow import keras
from tensorflow.keras.layers import (
    Conv1D,
    Dense,
    Flatten,
    Input,
    MaxPooling1D,
    Reshape,
    UpSampling1D,
)

rng = np.random.RandomState(0)
flux = (np.sin(np.linspace(0, 6, 16)) + rng.rand(100, 16) * 0.2)[:, :, None]


def conv_autoencoder(x_train, y_train, x_test, y_test, params):
    inputs = Input(shape=(16, 1))
    x = Conv1D(
        params["num_filters"],
        params["kernel_size"],
        activation=params["activation"],
        padding="same",
    )(inputs)
    x = MaxPooling1D(2)(x)
    x = Flatten()(x)
    code = Dense(params["latent_dim"], name="bottleneck", kernel_initializer=params["initializer"])(
        x
    )
    x = Dense(8 * params["num_filters"], activation=params["activation"])(code)
    x = Reshape((8, params["num_filters"]))(x)
    x = UpSampling1D(2)(x)
    decoded = Conv1D(
        1, params["kernel_size"], padding="same", activation=params["last_activation"]
    )(x)
    model = keras.Model(inputs, decoded)
    if params["optimizer"] == "adam":
        opt = keras.optimizers.Adam(learning_rate=params["lr"])
    else:
        opt = keras.optimizers.Adadelta(learning_rate=params["lr"])
    model.compile(optimizer=opt, loss=params["losses"], metrics=["mae"])
    history = model.fit(
        x_train,
        x_train,
        epochs=params["epochs"],
        batch_size=params["batch_size"],
        shuffle=True,
        validation_data=(x_test, x_test),
        verbose=0,
    )
    return history, model


p = {
    "kernel_size": [3, 5],
    "latent_dim": [2, 4],
    "num_filters": [2, 4],
    "activation": ["elu", "relu"],
    "last_activation": ["linear"],
    "optimizer": ["adam", "adadelta"],
    "lr": [0.001, 0.01],
    "losses": ["mean_squared_error"],
    "initializer": ["random_normal", "glorot_normal"],
    "epochs": [2],
    "batch_size": [32],
}
t = talos.Scan(
    x=flux,
    y=flux,
    params=p,
    model=conv_autoencoder,
    experiment_name="unsupervised",
    reduction_metric="val_loss",
    minimize_loss=True,
    reduction_method="correlation",
    fraction_limit=0.1,
)
analyze_object = talos.Analyze(t)
df = analyze_object.data
row = df.iloc[[np.argmin(df["val_loss"])]]
with open("best_params.txt", "a") as f:
    f.write(str(row) + "\n")
for name, plot in {
    "hist": lambda: analyze_object.plot_hist("val_loss"),
    "line": lambda: analyze_object.plot_line("val_loss"),
    "kde": lambda: analyze_object.plot_kde("val_loss"),
    "corr": lambda: analyze_object.plot_corr("val_loss", ["loss", "mae", "val_mae"]),
}.items():
    plot()
    plt.savefig(f"{name}.png")
    plt.close("all")
print(
    "RESULT",
    len(df),
    analyze_object.low("val_loss") == df["val_loss"].min(),
    analyze_object.rounds(),
)
print("RESULT", sorted(name for name in os.listdir(".") if name.endswith("png")))
