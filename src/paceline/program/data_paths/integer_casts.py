"""Whether a step does with floats what it does with the same integers: it casts them at once.

A step was traced on integers and on floats. Where it moves the integers about (``reshape``) and
then casts them to floats, and the floats to no integers, both compute the same.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any

import jax.numpy as jnp

from paceline.program.jax_compat import call_body, is_literal
from paceline.program.trace import Step

#: Operations that move numbers and change none.
_MOVES = frozenset("reshape squeeze expand_dims broadcast_in_dim transpose slice copy rev".split())


def casts_at_once(whole: Step, floats: Step, index: int) -> bool:
    """Whether floats in place of integers leave a step as it is: ``whole`` becomes ``floats``.

    ``index`` is the place of the integers among the inputs of the step; below 0 from the end.
    """
    jaxprs = whole.closed.jaxpr, floats.closed.jaxpr
    (cast, returned), (used, _) = (_first_uses(each, {each.invars[index]}) for each in jaxprs)
    return (
        not any(returned)
        and all(_casts_to(eqn, floats=True) for eqn in cast)
        and not any(_casts_to(eqn, floats=False) for eqn in used)
    )


def _casts_to(eqn: Any, *, floats: bool) -> bool:
    """Whether an equation casts to floats, or to something else."""
    if eqn.primitive.name != "convert_element_type":
        return False
    return jnp.issubdtype(eqn.params["new_dtype"], jnp.floating) == floats


def _first_uses(jaxpr: Any, variables: Collection[Any]) -> tuple[list[Any], list[bool]]:
    """The equations that do more with variables than to move them; which results are variables."""
    moved, uses = set(variables), []
    for eqn in jaxpr.eqns:
        places = [i for i, v in enumerate(eqn.invars) if not is_literal(v) and v in moved]
        body = None
        with suppress(KeyError):
            body, _ = call_body(eqn.params)
        if places and eqn.primitive.name in _MOVES:
            moved.update(eqn.outvars)
        elif places and body is not None and len(body.invars) == len(eqn.invars):
            inner, returned = _first_uses(body, {body.invars[i] for i in places})
            uses += inner
            moved.update(v for v, is_moved in zip(eqn.outvars, returned, strict=True) if is_moved)
        elif places:
            uses.append(eqn)
    return uses, [not is_literal(v) and v in moved for v in jaxpr.outvars]
