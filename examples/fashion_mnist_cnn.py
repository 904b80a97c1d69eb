r"""Fashion-MNIST with a convolutional network: a grid of 2 x 2 x 2 configurations.

    paceline search examples/fashion_mnist_cnn.py --sampler grid --trials 8 --batch-size 32 \
        --data keras:fashion_mnist
    paceline search examples/fashion_mnist_cnn.py --sampler grid --trials 8 --batch-size 1024 \
        --data fashion_mnist.npz

Three 5 x 5 convolutions of 64, 128 and 256 filters, each with batch normalisation and max-pooling.
The batch size is 32 on a CPU or GPU; 1,024 suits a TPU.
"""

import keras


def build(hp):
    activation = hp.Choice("activation", ["relu", "elu"])
    conv_dropout = hp.Choice("conv_dropout", [0.25, 0.4])

    model = keras.Sequential(
        [
            keras.layers.Input((28, 28), dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Reshape((28, 28, 1)),
        ]
    )
    for filters in (64, 128, 256):
        model.add(keras.layers.BatchNormalization())
        model.add(keras.layers.Conv2D(filters, 5, padding="same", activation=activation))
        model.add(keras.layers.MaxPooling2D(2))
        model.add(keras.layers.Dropout(conv_dropout))
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(hp.Choice("dense1_neuron", [256, 512]), activation=activation))
    model.add(keras.layers.Dense(10, activation="softmax"))
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
