"""Tasks of KerasHub: their data are preprocessed once, and their trials train in packs.

Small models with random weights; nothing is downloaded.
"""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import pytest

import paceline
from streams import alone

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TensorFlow's text library
    hub: Any = pytest.importorskip("keras_hub")

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="on other backends trials train in fit"
)
WORDS = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "good", "bad", "film", "the", "a", "was"]
rng = np.random.default_rng(0)
TEXTS = [" ".join(rng.choice(WORDS[5:], rng.integers(1, 9))) for _ in range(50)]
LABELS = np.array([int("good" in text) for text in TEXTS])
CALL: dict[str, Any] = {"epochs": 2, "batch_size": 16, "validation_split": 0.2}


def tokenizer(words: list[str] = WORDS) -> Any:
    return hub.models.BertTokenizer(vocabulary=words)


def preprocessor(length: int | None = 8, words: list[str] = WORDS) -> Any:
    return hub.models.BertTextClassifierPreprocessor(tokenizer(words), sequence_length=length)


def bert(preprocess: Any) -> Any:
    backbone = hub.models.BertBackbone(
        vocabulary_size=len(WORDS),
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=16,
    )
    return hub.models.BertTextClassifier(
        backbone=backbone, preprocessor=preprocess, num_classes=2, dropout=0.0
    )


def compiled(model: Any, hp: Any) -> Any:
    model.compile(
        keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-2)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def assert_alone(build: Any, trial: Any, *data: Any, **call: Any) -> None:
    """Compares a trial with the task's own ``fit``."""
    call = {**CALL, **call, "epochs": trial.epochs, "shuffle": False}
    history = alone(trial, build, *data, **call)
    for name, values in history.items():
        # Rounding of float32 sums. Another order of the examples is 1e-3 away.
        np.testing.assert_allclose(trial.history[name], values, atol=2e-5, err_msg=name)


def search(make: Any, build: Any, *data: Any, n_trials: int = 2, **call: Any) -> list[Any]:
    tuner = make(build, objective="val_loss")
    tuner.search(*data, **{**CALL, **call}, n_trials=n_trials)
    return list(tuner._require_study().trials)


def test_texts_are_preprocessed_once(make, notes) -> None:
    runs = []

    def build(hp: Any) -> Any:
        model = bert(preprocessor())
        own = model.preprocess_samples

        def counted(*args: Any) -> Any:
            runs.append(0)
            return own(*args)

        object.__setattr__(model, "preprocess_samples", counted)
        return compiled(model, hp)

    trials = search(make, build, TEXTS, LABELS, n_trials=3)
    assert {trial.plan for trial in trials} & {"vectorized", "sequential", "looped"}
    n = len(runs)
    for trial in trials:
        assert trial.error is None
        assert_alone(build, trial, np.array(TEXTS), LABELS)
    assert n < len(runs)
    assert any("never shuffles" in note for note in notes)


def test_a_length_that_trials_choose(make) -> None:
    def build(hp: Any) -> Any:
        return compiled(bert(preprocessor(hp.Choice("length", [4, 8]))), hp)

    tuner = make(build, objective="val_loss", sampler="random")
    tuner.enqueue({"length": 4})
    tuner.enqueue({"length": 8})
    tuner.search(TEXTS, LABELS, **CALL, n_trials=2)
    trials = tuner._require_study().trials
    assert [trial.hparams["length"] for trial in trials] == [4, 8]
    assert len({trial.program_id for trial in trials}) == 2
    for trial in trials:
        assert_alone(build, trial, np.array(TEXTS), LABELS)


def test_vocabularies_of_equal_size_are_told_apart(make) -> None:
    other = [*WORDS[:5], *WORDS[:4:-1]]

    def build(hp: Any) -> Any:
        return compiled(
            bert(preprocessor(words=WORDS if hp.Choice("words", [0, 1]) == 0 else other)), hp
        )

    tuner = make(build, objective="val_loss", sampler="random")
    tuner.enqueue({"words": 0})
    tuner.enqueue({"words": 1})
    tuner.search(TEXTS, LABELS, **CALL, n_trials=2)
    for trial in tuner._require_study().trials:
        assert trial.plan != "fit"
        assert_alone(build, trial, np.array(TEXTS), LABELS)


def test_arrays_of_a_task_without_preprocessor_pack(make) -> None:
    arrays = preprocessor()(TEXTS)
    arrays = {name: np.asarray(value) for name, value in arrays.items()}

    def build(hp: Any) -> Any:
        return compiled(bert(None), hp)

    trials = search(make, build, arrays, LABELS)
    for trial in trials:
        assert trial.plan != "fit"
        assert_alone(build, trial, arrays, LABELS)


def test_images(make) -> None:
    x = rng.integers(0, 256, (24, 16, 16, 3)).astype("uint8")
    y = rng.integers(0, 3, 24)

    def build(hp: Any) -> Any:
        backbone = hub.models.ResNetBackbone(
            input_conv_filters=[64],
            input_conv_kernel_sizes=[3],
            stackwise_num_filters=[64],
            stackwise_num_blocks=[1],
            stackwise_num_strides=[1],
            block_type="basic_block",
            image_shape=(12, 12, 3),
        )
        converter = hub.layers.ResNetImageConverter(image_size=(12, 12), scale=1 / 255)
        preprocess = hub.models.ResNetImageClassifierPreprocessor(converter)
        model = hub.models.ResNetImageClassifier(
            backbone=backbone, preprocessor=preprocess, num_classes=3, activation=None
        )
        return compiled(model, hp)

    trials = search(make, build, x, y, batch_size=8)
    for trial in trials:
        assert trial.plan != "fit"
        assert_alone(build, trial, x, y, batch_size=8)


def test_a_model_that_continues_texts(make) -> None:
    letters = sorted({*"abcdefghijklmnopqrstuvwxyz", "Ġ"})
    words = ["<|endoftext|>", "th", *letters]

    def build(hp: Any) -> Any:
        own = hub.models.GPT2Tokenizer(
            vocabulary={word: at for at, word in enumerate(words)}, merges=["t h"]
        )
        backbone = hub.models.GPT2Backbone(
            vocabulary_size=len(words),
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=16,
            max_sequence_length=8,
            dropout=0.0,
        )
        preprocess = hub.models.GPT2CausalLMPreprocessor(own, sequence_length=8)
        model = hub.models.GPT2CausalLM(backbone=backbone, preprocessor=preprocess)
        model.compile(
            keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-2)),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            weighted_metrics=["accuracy"],
        )
        return model

    trials = search(make, build, TEXTS)
    for trial in trials:
        assert trial.plan != "fit"
        assert_alone(build, trial, np.array(TEXTS))


def test_masked_words_are_drawn_anew_in_fit(make, notes) -> None:
    def build(hp: Any) -> Any:
        preprocess = hub.models.BertMaskedLMPreprocessor(
            tokenizer(), sequence_length=8, mask_selection_length=4, mask_selection_rate=0.5
        )
        backbone = bert(None).backbone
        model = hub.models.BertMaskedLM(backbone=backbone, preprocessor=preprocess)
        return compiled(model, hp)

    trials = search(make, build, TEXTS)
    assert {trial.plan for trial in trials} == {"fit"}
    assert any("returns different arrays for the same samples" in note for note in notes)


def test_texts_padded_to_the_longest_of_a_batch_stay_in_fit(make, notes) -> None:
    import tensorflow as tf

    class Longest(hub.models.BertTextClassifierPreprocessor):
        def call(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
            made = super().call(x, y, sample_weight)
            x, y, weight = keras.utils.unpack_x_y_sample_weight(made)
            lengths = tf.reduce_sum(tf.cast(x["padding_mask"], tf.int32), -1)
            longest = tf.reduce_max(lengths)
            x = {name: tf.convert_to_tensor(value)[:, :longest] for name, value in x.items()}
            return keras.utils.pack_x_y_sample_weight(x, y, weight)

    def build(hp: Any) -> Any:
        return compiled(bert(Longest(tokenizer(), sequence_length=12)), hp)

    trials = search(make, build, TEXTS, LABELS)
    assert {trial.plan for trial in trials} == {"fit"}
    assert any(
        "returns different arrays for a sample in different batches" in note for note in notes
    )


@pytest.mark.parametrize("by_hp", [False, True])
def test_callbacks_within_an_epoch_are_given_the_users_texts_in_fit(make, by_hp) -> None:
    class Batches(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            pass

    def build(hp: Any) -> Any:
        return compiled(bert(preprocessor()), hp)

    # A function of hp shows its callbacks only when the data have been preprocessed.
    callbacks: Any = (lambda hp: [Batches()]) if by_hp else [Batches()]
    trials = search(make, build, TEXTS, LABELS, callbacks=callbacks)
    for trial in trials:
        assert (trial.plan, trial.error) == ("fit", None)
        assert_alone(build, trial, np.array(TEXTS), LABELS)


def test_a_data_set_of_texts_stays_in_fit(make, notes) -> None:
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)).batch(16)

    def build(hp: Any) -> Any:
        return compiled(bert(preprocessor()), hp)

    tuner = make(build, objective="min:loss")
    tuner.search(data, epochs=1, n_trials=1)
    (trial,) = tuner._require_study().trials
    assert (trial.plan, trial.error) == ("fit", None)
    assert any("which the task preprocesses" in note for note in notes)


@pytest.mark.parametrize("weights", ["sample_weight", "class_weight"])
def test_weights_and_data_to_validate_on(make, weights) -> None:
    given: dict[str, Any] = {"sample_weight": np.linspace(0.1, 1.0, len(TEXTS))}
    if weights == "class_weight":
        given = {"class_weight": {0: 1.0, 1: 3.0}}
    others = (np.array(TEXTS[:10]), LABELS[:10])
    call = {**given, "validation_split": 0.0, "validation_data": others}

    def build(hp: Any) -> Any:
        return compiled(bert(preprocessor()), hp)

    for trial in search(make, build, TEXTS, LABELS, **call):
        assert trial.plan != "fit"
        assert_alone(build, trial, np.array(TEXTS), LABELS, **call)


@pytest.mark.parametrize("executor", ["auto", "fit"])
def test_folds(make, executor) -> None:
    def build(hp: Any) -> Any:
        return compiled(bert(preprocessor()), hp)

    tuner = make(build, objective="val_loss", executor=executor)
    call = {"epochs": 1, "batch_size": 16, "n_trials": 1, "folds": 2}
    if executor == "fit":
        with pytest.raises(paceline.UsageError, match="folds: .*folds need arrays"):
            tuner.search(TEXTS, LABELS, **call)
        return
    tuner.search(TEXTS, LABELS, **call)
    (trial,) = tuner._require_study().trials
    assert trial.error is None
    assert trial.plan != "fit"
