"""A compiled epoch updates weights and moments where they lie; it copies none of them per step."""

from __future__ import annotations

import re
from typing import Any

import jaxlib.version
import keras
import numpy as np
import pytest

from paceline.data.arrays import prepare
from paceline.pack.plan import VectorizedProgram, Workload
from paceline.program import trace
from paceline.program.step_template import StepTemplate

#: Widths that no other array of the step has.
FEATURES, UNITS = 37, 53

pytestmark = pytest.mark.skipif(
    tuple(map(int, jaxlib.version.__version__.split(".")[:2])) < (0, 10),
    reason="what XLA copies is looked at in the releases that it was measured on",
)


def program(n_slots: int) -> VectorizedProgram:
    data = prepare(np.zeros((24, FEATURES), "float32"), np.zeros(24, "int32"))
    layers = [keras.Input((FEATURES,)), keras.layers.Dense(UNITS, "relu"), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy")
    shapes = data.batch_shapes(8)
    state = trace.build_state(model, shapes)
    step = StepTemplate(trace.trace_train(model, state, shapes), None)
    return VectorizedProgram([step], state, Workload(data, None, 8, 8), n_slots)


@pytest.mark.parametrize("n_slots", [1, 2])
def test_no_step_copies_the_weights_of_a_layer(n_slots: int) -> None:
    call: Any = program(n_slots).roles()[0][0].call
    text = call.as_text()
    kernel = rf"f32\[(?:{n_slots},)?{FEATURES},{UNITS}\]"
    assert re.search(rf"= {kernel}\S* fusion\(", text), "the updates of the kernel are there"
    assert not re.findall(rf"= {kernel}\S* copy\(.*", text)
