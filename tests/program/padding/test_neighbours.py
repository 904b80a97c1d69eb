"""Slots of several widths side by side: what one holds changes no bit of another."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import pytest

from marks import slow_where
from paceline.program import jax_compat
from paceline.program.padding.widths import FamilyStep
from program.padding.kinds import MORE
from program.padding.test_widths import KINDS, batches, riding, traced

LARGEST, SMALLER, OWN = (6, 9), (2, 4), (4, 9)
NEIGHBOURS = [(2, 4), (6, 9), (3, 5)]
MODELS = {name: (KINDS | MORE)[name] for name in ("dense", "product", "norms", "flatten", "lstm")}


@pytest.mark.parametrize("kind", slow_where(MODELS, lambda kind: kind != "product"))
@pytest.mark.filterwarnings("ignore")
def test_a_slot_does_not_depend_on_its_neighbour(kind: str) -> None:
    """Neither on its widths, nor on NaN in its variables; whose padding stays zero."""
    make = MODELS[kind]
    keras.utils.set_random_seed(1)
    (family, w), (_, n) = traced(make(*LARGEST)), traced(make(*SMALLER))
    role = FamilyStep((w, n), None)
    batch = batches(make(*LARGEST), 1)[0]

    def slot(widths: tuple[int, int]) -> tuple[list[Any], Any]:
        state, step = traced(make(*widths))
        padded, embedding = riding(role, family, state, step)
        leaves = [np.asarray(leaf) for part in embedding.embed(state).lists() for leaf in part]
        return [*(c.value for c in padded.canonical.constants), *leaves, *batch], (
            embedding,
            padded,
        )

    own, (_, padded) = slot(OWN)
    run = jax.jit(jax.vmap(jax_compat.jaxpr_as_fun(padded.closed)))
    found = []
    for widths in NEIGHBOURS:
        other, (embedding, _) = slot(widths)
        first = len(padded.canonical.constants)
        spoilt = [*other]
        for i, leaf in enumerate(embedding.program.trainable):
            cut = embedding.cut_leaf(0, i, np.full(leaf.shape, np.nan, leaf.dtype))
            spoilt[first + i] = np.asarray(embedding.embed_leaf(0, i, cut))
        for neighbour in (other, spoilt):
            rows = [np.stack(pair) for pair in zip(neighbour, own, strict=True)]
            results = [np.asarray(result) for result in run(*rows)]
            found.append([result[1] for result in results])
        after = [result[0] for result in results[1:]]
        n_trainable = len(embedding.program.trainable)
        assert any(np.isnan(leaf).any() for leaf in after[:n_trainable])
        for i, leaf in enumerate(after[:n_trainable]):
            kept = embedding.embed_leaf(0, i, embedding.cut_leaf(0, i, leaf))
            assert np.array_equal(kept, leaf, equal_nan=True), "no NaN in the padding of a variable"
    for other_results in found[1:]:
        for a, b in zip(found[0], other_results, strict=True):
            assert a.tobytes() == b.tobytes()
