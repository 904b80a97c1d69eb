"""precision= is Keras' own policy, for the time of a search."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import paceline
import toys
from paceline.program.trace import policy_of

X, Y = toys.data()
CALL: dict[str, Any] = {**toys.CALL, "epochs": 2, "n_trials": 2, "verbose": 0}


def search(folder: Any, **arguments: Any) -> paceline.Tuner:
    tuner = paceline.Tuner(
        toys.dense, study="s", sampler="random", directory=folder, on_note=print, **arguments
    )
    tuner.search(X, Y, **CALL)
    return tuner


@pytest.mark.slow
def test_bfloat16_is_the_policy_that_a_user_would_set(tmp_path) -> None:
    asked = search(tmp_path / "asked", precision="bfloat16")
    assert keras.config.dtype_policy().name == "float32"
    with policy_of("bfloat16"):
        user = search(tmp_path / "user")
    plain = search(tmp_path / "plain")
    for number in range(2):
        assert asked.history(number) == user.history(number)
        np.testing.assert_allclose(
            asked.history(number)["loss"], plain.history(number)["loss"], atol=2e-2
        )
    assert asked.history(0) != plain.history(0)
    assert asked.best_model().layers[0].compute_dtype == "bfloat16"
    assert keras.config.dtype_policy().name == "float32"


def test_the_policy_is_as_before_whatever_happens(tmp_path) -> None:
    def build(hp: Any) -> Any:
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
        raise RuntimeError("no model today")

    tuner = paceline.Tuner(build, study="s", directory=tmp_path, precision="bfloat16")
    with pytest.raises(paceline.BuildError, match="no model today"):
        tuner.search(X, Y, **CALL)
    assert keras.config.dtype_policy().name == "float32"


def test_other_names_are_refused() -> None:
    with pytest.raises(paceline.UsageError, match="precision must be one of float32.* got 'half'"):
        paceline.Tuner(toys.dense, precision="half")
