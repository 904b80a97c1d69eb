"""Labels and tokens of intercepted fits are checked as those of a search."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from compat.interception.functions import X as FEATURES
from compat.interception.functions import Y, network
from paceline.compat.interception import Engine, FunctionCall
from paceline.errors import DataError

TOKENS = np.random.default_rng(0).integers(0, 10, (64, 5))


def outcomes(*functions):
    """What each function came to, by its number."""
    with Engine() as engine:
        calls = [FunctionCall(i, function, i) for i, function in enumerate(functions)]
        return {outcome.number: outcome for outcome in engine.run(calls)}


def fits(labels, validation=None):
    def function():
        data = None if validation is None else (FEATURES, validation)
        return network().fit(FEATURES, labels, validation_data=data, verbose=0).history

    return function


def looks_up(tokens):
    def function():
        model = keras.Sequential([keras.layers.Embedding(10, 2), keras.layers.Flatten()])
        model.add(keras.layers.Dense(1))
        model.compile("sgd", "mse")
        return model.fit(tokens, np.zeros(64), verbose=0).history

    return function


def test_labels_that_are_no_classes_fail_their_function_alone():
    wrong = np.where(np.arange(64) == 7, 9, Y)
    found = outcomes(fits(wrong), fits(Y), fits(Y, wrong))
    for number, what in {0: "training data", 2: "validation data"}.items():
        assert isinstance(found[number].error, DataError)
        with pytest.raises(DataError, match=f"^{what}: labels go from 0 to 9, but the model has"):
            raise found[number].error
    assert found[1].error is None and np.isfinite(found[1].value["loss"]).all()
    assert [fit.why_alone for fit in found[1].fits] == [None]


def test_tokens_beyond_an_embedding_fail_their_function_alone():
    wrong = TOKENS.copy()
    wrong[7, 2] = 10
    found = outcomes(looks_up(wrong), looks_up(TOKENS))
    with pytest.raises(DataError, match=r"^training data: .* the Embedding .*, got 10\."):
        raise found[0].error
    assert found[1].error is None and np.isfinite(found[1].value["loss"]).all()
