"""The only place that touches what Keras does not publish; read for Keras 3.10 to 3.15.

Some things have no public way:

``Model._symbolic_build``
    creates the state of metrics, loss and optimizer exactly when and as ``fit`` does, without
    training a step. ``train_on_batch`` would do it by changing the weights.
Keras' global state
    ``object_name_uids`` numbers automatic layer names. Every trial must name its outputs alike,
    because metrics are named after them; ``clear_session`` would do it by losing the user's dtype
    policy and distribution. ``global_random_seed`` and ``global_seed_generator`` are set by
    ``set_random_seed`` and have no getter: a search leaves them as they were.
Names of attributes and classes
    that ``recipe.py`` meets on its walk over a model's objects. Should they change, models differ
    where they need not: their trials are traced, and nothing worse.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Classes whose instances no step consults: lists of what an object tracks, arguments kept for
#: ``get_config``, and the signature of ``call``, which is the class's.
NO_PART_OF_A_STEP = frozenset(
    {
        "inspect.Signature",
        "keras.src.saving.serialization_lib.SerializableDict",
        "keras.src.utils.tracking.Tracker",
    }
)
#: Attribute of a variable that holds its array.
VALUE = "_value"
#: Attribute of a seed generator that holds the number it started from.
FIRST_SEED = "_initial_seed"

#: Modules of Keras' own classes, whatever public name they are used by.
OWN = "keras.src."


def symbolic_build(model: Any, batch: Any) -> None:
    """Creates all variables of a compiled model as ``fit`` would on its first batch.

    Args:
        model: A compiled model.
        batch: ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)`` of things with ``shape`` and
            ``dtype``.
    """
    model._symbolic_build(data_batch=batch)
    if hasattr(type(model), "_enforce_jax_state_sharding"):
        # Keras 3.10 and 3.11 pin the state to the shardings that ``fit`` records; a pack places it
        # itself.
        object.__setattr__(model, "_enforce_jax_state_sharding", _as_it_is)


def _as_it_is(
    trainable_variables: Any = None,
    non_trainable_variables: Any = None,
    optimizer_variables: Any = None,
    metrics_variables: Any = None,
) -> tuple[list[Any], ...]:
    return (
        trainable_variables or [],
        non_trainable_variables or [],
        optimizer_variables or [],
        metrics_variables or [],
    )


@contextmanager
def fresh_names() -> Iterator[None]:
    """Automatic layer names start at their beginning inside, and go on where they were after."""
    with _kept("object_name_uids") as state:
        if state is not None:
            state.set_global_attribute("object_name_uids", None)
        yield


@contextmanager
def seed_state_kept() -> Iterator[None]:
    """What ``keras.utils.set_random_seed`` sets inside Keras is after as it was before."""
    with _kept("global_random_seed", "global_seed_generator"):
        yield


@contextmanager
def _kept(*names: str) -> Iterator[Any]:
    try:
        from keras.src.backend.common import global_state
    except ImportError:  # a later Keras keeps it elsewhere: names then differ between trials
        yield None
        return
    before = {name: global_state.get_global_attribute(name) for name in names}
    try:
        yield global_state
    finally:
        for name, value in before.items():
            global_state.set_global_attribute(name, value)
