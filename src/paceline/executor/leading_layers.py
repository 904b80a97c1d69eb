"""Layers that make numbers of text before all others, and models without them.

``TextVectorization`` and its like run in TensorFlow alone. If all models of a search begin with the
same such layers, these run once over the data. The steps that JAX compiles begin behind them. The
variables stay those of the whole model, in their order.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from paceline.program import keras_private

#: Classes of such layers: what they make of an example depends on nothing but the example.
_KINDS = (keras.layers.TextVectorization, keras.layers.StringLookup, keras.layers.Hashing)
#: Examples that run through layers at once, and those by which layers are compared.
_AT_ONCE, _TRIED = 4096, 64
#: GiB of the arrays that they make, at most.
_MOST = 4


@dataclass(frozen=True)
class LeadingLayers:
    """The layers with which a model begins, for each of its inputs that is text."""

    model: Any
    chains: Mapping[int, tuple[Sequence[Any], Any]]  # place of an input -> layers, their tensor

    @classmethod
    def of(cls, model: Any) -> LeadingLayers | None:
        """Those of a compiled model; None if it begins with none, or isn't a plain graph.

        Raises ValueError if what they make of an example depends on its batch.
        """
        plain = type(model) in (keras.Sequential, keras_private.functional_class())
        inputs = (getattr(model, "inputs", None) or []) if plain else []
        chains = {
            place: _chain(tensor, keras_private.graph_calls(model))
            for place, tensor in enumerate(inputs)
            if tensor.dtype == "string"
        }
        found = {place: chain for place, chain in chains.items() if chain is not None}
        return cls(model, found) if found and len(found) == len(chains) else None

    def rest(self) -> Any:
        """The model behind the layers, compiled; raises ValueError if it is another model."""
        model = self.model
        tensors = [
            self.chains[place][1] if place in self.chains else tensor
            for place, tensor in enumerate(model.inputs)
        ]
        if isinstance(model, keras.Sequential):
            (inputs,), (outputs,) = tensors, model.outputs
        else:
            inputs, outputs = keras.tree.pack_sequence_as(model.input, tensors), model.output
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tensors have other names than the inputs
            rest = keras.Model(inputs, outputs, name=model.name)
        for name in ("trainable_variables", "non_trainable_variables"):
            ours, theirs = getattr(rest, name), getattr(model, name)
            if [*map(id, ours)] != [*map(id, theirs)]:
                raise ValueError("without the layers the model has other variables")
        arguments = keras_private.compile_arguments(model)
        if not arguments.get("jit_compile"):  # "auto" is off for layers of TensorFlow's
            arguments["jit_compile"] = "auto"
        rest.compile(**arguments)
        return rest

    def facts(self) -> list[Any]:
        """What decides what the layers do, but for what ``numbers`` shows."""
        return [
            [(type(layer).__name__, _config(layer), _vocabulary(layer)) for layer in layers]
            for layers, _ in self.chains.values()
        ]

    def numbers(self, x: Any) -> Any:
        """Nests of arrays [N, ...] for the rest, of those for the model.

        Raises ValueError if they do not fit the model, or would take too much memory.
        """
        structure, leaves = self._leaves(x)
        made = [
            self._run(place, leaf) if place in self.chains else leaf
            for place, leaf in enumerate(leaves)
        ]
        nested = keras.tree.is_nested(structure)
        return keras.tree.pack_sequence_as(structure, made) if nested else made[0]

    def sample(self, x: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each input that is text some of it, and what the layers make of it."""
        leaves = self._leaves(x)[1]
        some = {place: leaves[place][:_TRIED] for place in self.chains}
        return [(text, self._run(place, text)) for place, text in some.items()]

    def _leaves(self, x: Any) -> tuple[Any, list[np.ndarray]]:
        """The structure of the model's inputs, and the parts of x in their order."""
        single = isinstance(self.model, keras.Sequential)
        structure = self.model.inputs[0] if single else self.model.input
        if isinstance(x, Mapping) and isinstance(structure, Mapping):
            x = {name: x[name] for name in structure}
        elif isinstance(x, Mapping):  # as in Keras, other structures take their parts by name
            x = keras.tree.map_structure(lambda tensor: x[tensor.name], structure)
        if not keras.tree.is_nested(structure):
            return structure, [np.asarray(x)]
        keras.tree.assert_same_structure(structure, x)
        return structure, [np.asarray(leaf) for leaf in keras.tree.flatten(x)]

    def _run(self, place: int, text: np.ndarray) -> np.ndarray:
        layers, tensor = self.chains[place]
        width = int(np.prod([1 if size is None else size for size in tensor.shape[1:]]))
        if (gigabytes := len(text) * width * 8 / 2**30) > _MOST:
            raise ValueError(f"what its first layers make would take {gigabytes:.0f} GiB")
        rank = len(self.model.inputs[place].shape)
        if text.ndim == rank - 1:
            text = text[..., None]
        elif text.ndim == rank + 1 and text.shape[-1] == 1:
            text = text[..., 0]
        parts = []
        for at in range(0, len(text), _AT_ONCE):
            value: Any = text[at : at + _AT_ONCE]
            for layer in layers:
                value = layer(value)
            parts.append(np.asarray(keras.ops.convert_to_numpy(value)))
        if {part.shape[1:] for part in parts} != {tuple(tensor.shape[1:])}:
            raise ValueError("its first layers make arrays of a size that depends on the batch")
        return np.concatenate(parts)


@dataclass(frozen=True)
class LayersAhead:
    """The leading layers of a search, as they ran over its data: sent to where models train."""

    facts: list[Any]
    samples: list[tuple[np.ndarray, np.ndarray]]  # text, and what the layers made of it

    def without(self, model: Any) -> Any:
        """A model without these layers; raises ValueError if it begins with others."""
        found = LeadingLayers.of(model)
        if found is None or found.facts() != self.facts:
            raise ValueError(
                "the model begins with other layers for text than the first model, whose layers "
                "ran over the data once for all trials"
            )
        for place, (text, made) in zip(found.chains, self.samples, strict=True):
            if not np.array_equal(found._run(place, text), made):
                raise ValueError(
                    "the layers for text with which the model begins make other numbers of it than "
                    "those of the first model"
                )
        return found.rest()


@dataclass(frozen=True)
class BuildBehindLayers:
    """A user's ``build``, whose models are wanted without the layers that ran ahead."""

    build: Any
    ahead: LayersAhead


def _chain(tensor: Any, calls: Sequence[tuple[Any, Any, Any]]) -> tuple[list[Any], Any] | None:
    """The layers from a text to numbers, and the tensor behind them."""
    layers = []
    while tensor.dtype == "string":
        users = [call for call in calls if any(each is tensor for each in call[1])]
        if len(users) != 1 or type(users[0][0]) not in _KINDS or len(users[0][1]) != 1:
            return None
        layers.append(users[0][0])
        (tensor,) = users[0][2]
    if None in tensor.shape[1:]:
        raise ValueError(
            f"layer {layers[-1].name} makes longer arrays of a batch with longer texts; pass it "
            "output_sequence_length"
        )
    return layers, tensor


def _config(layer: Any) -> Any:
    serialized: Any = keras.saving.serialize_keras_object(layer)
    config = serialized["config"]
    # Whether a vocabulary was given or adapted makes no difference.
    return {n: v for n, v in config.items() if n not in ("name", "vocabulary", "idf_weights")}


def _vocabulary(layer: Any) -> tuple[str, ...]:
    get = getattr(layer, "get_vocabulary", None)
    return () if get is None else tuple(map(str, get()))
