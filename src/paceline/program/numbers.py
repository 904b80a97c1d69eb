"""What decides the numbers of models in a process, for a process on another machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import keras

from paceline.program import keras_private


def number_settings() -> dict[str, Any]:
    """What decides the numbers of models in this process, to be set in another one."""
    with keras_private.no_tensorflow():
        policy = keras.dtype_policies.serialize(keras.config.dtype_policy())
    return {
        "dtype_policy": policy,
        "floatx": keras.config.floatx(),
        "epsilon": keras.config.epsilon(),
        "image_data_format": keras.config.image_data_format(),
        "jax_enable_x64": bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
    }


def set_numbers(settings: Mapping[str, Any]) -> None:
    """Has this process compute as the one that ``number_settings`` is from."""
    jax.config.update("jax_enable_x64", settings["jax_enable_x64"])
    keras.config.set_floatx(settings["floatx"])
    keras.config.set_epsilon(settings["epsilon"])
    keras.config.set_image_data_format(settings["image_data_format"])
    policy = keras.dtype_policies.deserialize(settings["dtype_policy"])
    keras.config.set_dtype_policy(policy)
