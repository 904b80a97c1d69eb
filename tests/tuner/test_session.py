"""What a session is told of code that its process cannot run."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Any

import keras
import pytest

from paceline.tuner.search.session import foreign_calls, is_of_memory, what_stands_in_the_way


def error_of(line: str, folder: Path) -> BaseException:
    """What a line in a user's file raises that calls another library."""

    class Library:
        def __getattr__(self, name: str) -> Any:
            return self  # and cannot be called

    path = folder / "script.py"
    path.write_text(line + "\n", encoding="utf-8")
    linecache.checkcache(str(path))
    with pytest.raises(TypeError, match="not callable") as raised:
        exec(compile(line, str(path), "exec"), {"tf": Library(), "torch": Library(), "x": 1})
    return raised.value


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("y = -tf.math.log(x)", "calls tf.math.log, .* Write keras.ops.log instead"),
        ("y = tf.reduce_mean(x)", "Write keras.ops.mean instead"),
        ("y = tf.concat([tf.nn.relu(x)], 0)", "Write keras.ops.concatenate, keras.ops.relu inst"),
        ("y = torch.clamp(x, 0, 1)", "Write keras.ops.clip instead"),
        ("y = tf.GradientTape()", "Write your model's compute_loss.. instead"),
        ("y = tf.strings.lower(x)", "calls tf.strings.lower, which a program of JAX cannot hold$"),
    ],
)
def test_the_line_is_named_with_what_to_write(line: str, said: str, fresh_folder: Path) -> None:
    text = what_stands_in_the_way(error_of(line, fresh_folder))
    assert text.startswith(f"line 1 of {fresh_folder / 'script.py'} calls ")
    assert re.search(said, text), text


@pytest.mark.parametrize(
    ("line", "called"),
    [
        ("y = tf.keras.layers.concatenate(x)", None),
        ("y = tf.keras.layers.Dense(1)(tf.reduce_mean(x))", "tf.reduce_mean"),
        ("y = tf.keras.backend.mean(x)", "tf.keras.backend.mean"),
    ],
)
def test_keras_is_no_foreign_call_under_the_name_tf_keras(
    line: str, called: str | None, fresh_folder: Path
) -> None:
    error = error_of(line, fresh_folder)
    if called is None:
        assert foreign_calls(error) is None
        assert what_stands_in_the_way(error).startswith("TypeError: 'Library' object is not call")
    else:
        assert f" calls {called}, which" in str(foreign_calls(error))


def test_every_name_that_is_offered_is_keras_own() -> None:
    from paceline.tuner.search import session

    assert all(hasattr(keras.ops, name) for name in session._NAMES.values())


def test_an_error_of_memory_is_recognised_by_its_causes() -> None:
    outer = ValueError("Exception encountered when calling layer")
    outer.__context__ = MemoryError("variables take 9 GB")
    assert is_of_memory(outer) and is_of_memory(outer.__context__)
    assert not is_of_memory(ValueError("no"))
