"""Checks the numbers that models look up in their Embeddings, in training and validation data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras
import numpy as np

from paceline.data.arrays import ArrayData
from paceline.data.batched import BatchedDataset
from paceline.errors import DataError
from paceline.program import keras_private
from paceline.program.data_paths.lookups import Lookup, lookups


class TokenChecks:
    """Checks models of a search; what was found right once is not looked at again."""

    def __init__(self) -> None:
        self._right: dict[Any, Any] = {}  # what was looked at -> the data, whose ``id`` is in it
        self._of_batch: dict[Any, list[Lookup]] = {}  # what batches are like -> lookups of them

    def check(
        self,
        model: Any,
        layers: Sequence[Any],
        data: ArrayData | BatchedDataset | None,
        what: str,
        build: Callable[[], Any] | None = None,
    ) -> bool:
        """Checks one model against one data set, of which ``what`` is the name.

        ``layers`` are its Embeddings. ``build`` makes the same model again, if this one may not get
        its variables yet. Returns whether it was called, since it moves Keras' random state. Raises
        DataError if a number is beyond an Embedding, or negative, and the model only moves or casts
        it or adds constants before.
        """
        if not layers or data is None or keras.backend.backend() != "jax":
            return False
        every = tuple(type(layer) for layer in keras_private.all_layers(model))
        key = id(data), every, tuple((layer.name, layer.input_dim) for layer in layers)
        if key in self._right or not (model.built or build):
            return False
        shapes, built = data.batch_shapes(2), model.built
        if not built and build is not None:
            model = build()
            keras_private.symbolic_build(model, shapes)
        for lookup in lookups(model, shapes[0]):
            _check(lookup, data, what)
        self._right[key] = data
        return not built

    def check_batch(self, model: Any, batch: tuple[Any, ...]) -> None:
        """Checks a batch of one built model, ``(x,)``, ``(x, y)`` or with weights, as ``check``."""
        leaves = jax.tree.leaves(batch)
        data = ArrayData(batch, leaves[0].shape[0])
        key = jax.tree.structure(batch), *((a.shape[1:], str(a.dtype)) for a in leaves)
        if key not in self._of_batch:
            of_model = (
                lookups(model, data.batch_shapes(2)[0]) if keras_private.embeddings(model) else []
            )
            self._of_batch[key] = of_model
        for lookup in self._of_batch[key]:
            _check(lookup, data, "a batch of the data")


def _check(lookup: Lookup, data: ArrayData | BatchedDataset, what: str) -> None:
    """Checks one call of an Embedding against the smallest and largest numbers of each place."""
    places = lookup.places()
    if places is None:
        return
    paths, shapes = zip(*jax.tree_util.tree_leaves_with_path(data.batch_shapes(2)[0]), strict=True)
    stops = np.cumsum([math.prod(shape.shape) for shape in shapes])
    of_leaf = np.searchsorted(stops, places, side="right")
    used = set(np.unique(of_leaf).tolist())
    if used & set(data.wide):
        return  # ``executor/wide_integers.py`` refuses them, and names the column
    leaves = [
        data.ends(i) if i in used else np.zeros(shape.shape, shape.dtype)
        for i, shape in enumerate(shapes)
    ]
    numbers = lookup.numbers(leaves)
    if numbers is None or numbers.shape != places.shape:
        return
    numbers = np.trunc(numbers)
    bad = np.isfinite(numbers) & ((numbers < 0) | (numbers >= lookup.rows))
    if not bad.any():
        return
    at = np.unravel_index(np.argmax(np.where(bad, np.abs(numbers), -1)), numbers.shape)
    leaf, value = int(of_leaf[at]), int(numbers[at])
    where = "x" + jax.tree_util.keystr(paths[leaf])
    shape = shapes[leaf].shape
    if len(shape) > 1 and len(np.unique(places[of_leaf == leaf])) < math.prod(shape):
        where += f"[..., {int(places[at]) % shape[-1]}]"
    if value < 0:
        how = "Renumber them from 0" + (", which is the padding." if lookup.mask_zero else ".")
    else:
        how = f"Set input_dim={value + 1}, or renumber them."
    raise DataError(
        f"{what}: the numbers of {where} that the Embedding {lookup.name!r} looks up must be from "
        f"0 to {lookup.rows - 1:,} (input_dim={lookup.rows}), got {value:,}. {how}"
    )
