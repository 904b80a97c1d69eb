r"""CIFAR-10 with a convolutional network: which device, which batch size?

    paceline bench examples/compare_devices.py --data keras:cifar10 -o bench.html
    paceline bench examples/compare_devices.py --data cifar10.npz --epochs 20 --target-value 0.7
    paceline bench examples/compare_devices.py --data keras:cifar10 --devices cpu,gpu

The batch sizes are 32 to 1,024, from Keras' default to a size that fills an accelerator. To compare
two machines, write a result on each with ``-o gpu.json`` and ``-o tpu.json``. Then run

    paceline bench --merge gpu.json tpu.json -o both.html
"""

import keras


def build(hp):
    dropout = hp.Float("dropout", 0.1, 0.4, default=0.25)
    model = keras.Sequential(
        [keras.layers.Input((32, 32, 3), dtype="uint8"), keras.layers.Rescaling(1 / 255)]
    )
    for filters in (32, 64):
        model.add(keras.layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(keras.layers.Conv2D(filters, 3, activation="relu"))
        model.add(keras.layers.MaxPooling2D(2))
        model.add(keras.layers.Dropout(dropout))
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(512, activation="relu"))
    model.add(keras.layers.Dropout(2 * dropout))
    model.add(keras.layers.Dense(10, activation="softmax"))
    model.compile(
        optimizer=keras.optimizers.Adam(hp.Float("lr", 1e-4, 1e-2, sampling="log", default=1e-3)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model
