"""Every difference between JAX versions, in one place (0.6.2 to the newest).

Public names only: ``jax.extend.core`` is where JAX puts what jaxpr transformations may use.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core as jax_core
from jax.extend import core as jex_core

from paceline.errors import UsageError

Var = jex_core.Var
Literal = jex_core.Literal
Jaxpr = jex_core.Jaxpr
ClosedJaxpr = jex_core.ClosedJaxpr
jaxpr_as_fun = jex_core.jaxpr_as_fun

#: Primitives that only call a function; their bodies are inlined. ``pjit`` became ``jit`` in 0.7.
#: Custom derivatives may be inlined because a train step is traced after differentiation.
CALLS = frozenset(
    {
        "jit",
        "pjit",
        "closed_call",
        "core_call",
        "core_closed_call",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
    }
)
#: ``remat`` was called ``remat2`` and ``checkpoint``; its body is an open jaxpr.
REMAT = frozenset({"remat", "remat2", "checkpoint"})

_BODY_PARAMS = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def extra_options() -> str:
    """What XLA_FLAGS has of ``xla_backend_extra_options``, which decides last bits; "none"."""
    name = "--xla_backend_extra_options="
    found = [word for word in os.environ.get("XLA_FLAGS", "").split() if word.startswith(name)]
    return found[-1].removeprefix(name) if found else "none"


def call_body(params: dict[str, Any]) -> tuple[Any, list[Any]]:
    """The jaxpr that a call primitive runs, and the values of its constants, from its parameters.

    Raises KeyError where no parameter holds a jaxpr.
    """
    for name in _BODY_PARAMS:
        body = params.get(name)
        if isinstance(body, ClosedJaxpr):
            return body.jaxpr, list(body.consts)
        if isinstance(body, Jaxpr):
            return body, []
    raise KeyError(f"a call primitive with none of {_BODY_PARAMS}: {sorted(params)}")


def is_literal(atom: Any) -> bool:
    """Whether an operand of an equation is a constant written in place."""
    return isinstance(atom, Literal)


def is_key(aval: Any) -> bool:
    """Whether an abstract value is an array of typed PRNG keys."""
    return jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)


def generator(implementation: Any) -> tuple[str, bool]:
    """A PRNG implementation as text, and whether its numbers stay the same under ``vmap``."""
    name = str(implementation.name)
    return f"rng:{name}:{tuple(implementation.key_shape)}", "threefry" in name


def is_hardware_key(aval: Any) -> bool:
    """Whether an abstract value is an array of typed keys of any generator but threefry."""
    return is_key(aval) and "fry" not in str(aval.dtype)


def trace_state() -> Any:
    """A value for what JAX traces in this thread; equal values mean the same trace, or none."""
    # It moved out of ``jax.core`` in 0.7.
    module = jex_core if hasattr(jex_core, "get_opaque_trace_state") else jax_core
    return module.get_opaque_trace_state(convention="flax")  # pyright: ignore[reportAttributeAccessIssue]


def counts_by_position(key: Any) -> bool:
    """Whether number i of a draw follows from this key and i alone, as with threefry by default."""
    if not isinstance(key, jax.Array) or not jax.config.jax_threefry_partitionable:  # pyright: ignore[reportAttributeAccessIssue]
        return False
    if is_key(key):
        return key.shape == () and "fry" in str(key.dtype)
    threefry = jax.config.jax_default_prng_impl == "threefry2x32"  # pyright: ignore[reportAttributeAccessIssue]
    return threefry and key.shape == (2,)


def constant_value(value: Any, aval: Any) -> np.ndarray:
    """A constant as a NumPy array of its abstract value's dtype.

    A literal holds a Python number, an ndarray or a typed ndarray, depending on the version.
    """
    if is_key(aval):
        return np.asarray(jax.random.key_data(value))
    return np.asarray(value, dtype=aval.dtype)


def aval_of(value: Any) -> Any:
    """The abstract value of an array or a number, as an input of a jaxpr has it."""
    return jax.make_jaxpr(lambda a: a)(value).jaxpr.invars[0].aval


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """How many operands of a ``scan`` are the same in each round, and how many are carried.

    0.12 groups the operands in ``ft_in``, where numbers stood: constants, carried ones, rows.
    """
    if "ft_in" not in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def more_scan_consts(params: dict[str, Any], count: int) -> dict[str, Any]:
    """Parameters of a ``scan`` with ``count`` more constants in front of its operands."""
    if count == 0:
        return params
    if "ft_in" in params:
        # Groups have no public name: these are taken from a loop that JAX makes for us.
        groups = _scan_groups(count)
        consts, carry, rows = params["ft_in"].unpack()
        packed = type(groups)
        return {**params, "ft_in": packed(packed(groups.unpack()[0], consts), carry, rows)}
    more = {"num_consts": params["num_consts"] + count}
    if "linear" in params:  # until 0.7 operands were marked as linear
        more["linear"] = (False,) * count + tuple(params["linear"])
    return {**params, **more}


@functools.cache
def _scan_groups(count: int) -> Any:
    """How JAX 0.12 groups the operands of a ``scan`` with this many constants."""

    def loop(*consts: Any) -> Any:
        return jax.lax.scan(lambda carry, _: (carry + sum(consts), None), 0.0, length=1)

    closed = jax.make_jaxpr(loop)(*np.zeros(count, np.float32))
    (scan,) = (eqn for eqn in closed.jaxpr.eqns if eqn.primitive.name == "scan")
    return scan.params["ft_in"]


def rewritten(
    jaxpr: Any,
    invars: Sequence[Any],
    outvars: Sequence[Any],
    eqns: Sequence[Any],
    constvars: Sequence[Any] = (),
) -> Any:
    """A jaxpr of other inputs, results and equations, which debug info names no more."""
    info = jaxpr.debug_info
    if hasattr(info, "_replace"):
        info = info._replace(arg_names=("",) * len(invars), result_paths=("",) * len(outvars))
    lists = {"invars": invars, "outvars": outvars, "eqns": eqns, "constvars": constvars}
    return jaxpr.replace(**{name: list(each) for name, each in lists.items()}, debug_info=info)


def settings() -> str:
    """Text of all of JAX's settings as they are now, those of ``with`` blocks included."""
    return repr(jax.config.values)


def check_threads() -> None:
    """Checks that JAX's settings are the same in the threads that train.

    A setting of a ``with`` block holds in the user's thread alone.
    """
    theirs: dict[str, Any] = {}
    thread = threading.Thread(target=lambda: theirs.update(jax.config.values))
    thread.start()
    thread.join()
    for name, value in jax.config.values.items():
        if repr(value) != repr(theirs.get(name)):
            raise UsageError(
                f"{name} is {value!r} in this thread but {theirs.get(name)!r} in the threads that "
                f"train, which a with block does not affect. Use jax.config.update({name!r}, ...) "
                "before the search."
            )
