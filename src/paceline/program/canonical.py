"""A traced step in canonical form: fingerprint, constants, and the step with constants lifted.

Notation
    constant: a number or array written into a jaxpr. One fixed walk over the equations numbers
        them: constant i of a trial is constant i of every trial with the same fingerprint.
    lift: make constant i an input of the step, one value per trial.

The walk inlines calls, numbers variables in order of appearance, and adds everything but the values
of floating-point constants to the fingerprint. Integer and boolean constants are part of the
fingerprint: they decide schedules and shapes. Where they split a group in two, the groups are
smaller, but never wrong.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from paceline.program import jax_compat as jv


class Unpackable(Exception):
    """This step cannot be packed; the message says why, in words for the user."""


@dataclass(frozen=True)
class Constant:
    """A floating-point constant of a step."""

    value: np.ndarray  # in the dtype that the step uses; shape () for a number
    aval: Any  # shape, dtype, weak type
    # Whether the constant can become an input. False inside primitives whose bodies are not
    # rewritten, and where ``vmap`` takes no value per trial: there the value is part of the
    # fingerprint.
    liftable: bool = True


@dataclass(frozen=True)
class Canonical:
    """A step's fingerprint and constants."""

    fingerprint: str  # sha256, hexadecimal; equal for steps that differ in liftable constants only
    constants: tuple[Constant, ...]  # in the order of the walk
    # Whether the step draws from a generator (rbg) whose numbers change under ``vmap``.
    batched_rng_differs: bool
    convolves: bool  # whether the step holds a convolution


_ALLOWED_CALLBACK_HINT = "move the side effect out of the training step"


class _Scope:
    """The lifted constants and arrays that one jaxpr needs as inputs while it is rewritten.

    The body of a loop needs them as operands of the loop: the parent's scope then needs them too.
    """

    def __init__(self, parent: _Scope | None) -> None:
        self.parent = parent
        self.extra: dict[int, Any] = {}

    def var(self, index: int, aval: Any) -> Any:
        if index not in self.extra:
            self.extra[index] = jv.Var(aval)
        return self.extra[index]


class _Walk:
    """One walk over a step; with ``lift`` it also emits the rewritten equations.

    Each variable and constant has a token, its name in the text that is digested. An operand is a
    pair: its token, and its atom in the rewritten jaxpr, or None if nothing is rewritten.
    """

    def __init__(self, lift: Collection[int] | None = None) -> None:
        self.constants: list[Constant] = []
        self.batched_rng_differs = False
        self.convolves = False
        self._lift = lift
        self._digest = hashlib.sha256()
        self._n_vars = 0
        self._frozen = 0

    # -- the fingerprint -------------------------------------------------------------------------

    def _write(self, text: str) -> None:
        self._digest.update(text.encode())
        self._digest.update(b"\x00")

    def fingerprint(self) -> str:
        return self._digest.hexdigest()

    # -- operands: (token, rewritten atom or None) -------------------------------------------------

    def _fresh(self) -> str:
        self._n_vars += 1
        return f"v{self._n_vars}"

    def _constant(self, value: Any, aval: Any, scope: _Scope | None) -> tuple[str, Any]:
        array = jv.constant_value(value, aval)
        is_float = not jv.is_key(aval) and jax.numpy.issubdtype(aval.dtype, np.floating)
        if not is_float:
            return f"k:{aval_text(aval)}:{_bytes_text(array)}", self._kept(value, aval, scope, None)
        index = len(self.constants)
        liftable = self._frozen == 0
        self.constants.append(Constant(array, aval, liftable))
        if not liftable:
            return f"z{index}:{aval_text(aval)}:{_bytes_text(array)}", self._kept(
                value, aval, scope, None
            )
        return f"c{index}:{aval_text(aval)}", self._kept(value, aval, scope, index)

    def _freeze(self, token: str) -> None:
        """Makes the value of a constant, which has a token already, part of the fingerprint."""
        if token.startswith("c"):
            index = int(token[1 : token.index(":")])
            constant = self.constants[index]
            self.constants[index] = replace(constant, liftable=False)
            self._write(f"z{index}:{_bytes_text(constant.value)}")

    def _kept(self, value: Any, aval: Any, scope: _Scope | None, index: int | None) -> Any:
        """The operand for a constant: a lifted input, an input for an array, else a literal."""
        if scope is None:
            return None
        if index is not None and self._lift is not None and index in self._lift:
            return scope.var(index, aval)
        if np.shape(value) == () and not jv.is_key(aval):
            return jv.Literal(jv.constant_value(value, aval)[()], aval)
        # Arrays cannot be literals: they become inputs too, under negative numbers.
        self.arrays.append(value)
        return scope.var(-len(self.arrays), aval)

    arrays: list[Any]

    def read(self, atom: Any, env: dict[Any, tuple[str, Any]], scope: _Scope | None) -> Any:
        if jv.is_literal(atom):
            return self._constant(atom.val, atom.aval, scope)
        return env[atom]

    # -- jaxprs ------------------------------------------------------------------------------------

    def body(
        self,
        jaxpr: Any,
        consts: Sequence[Any],
        operands: Sequence[tuple[str, Any]],
        scope: _Scope | None,
        emit: list[Any] | None,
    ) -> list[tuple[str, Any]]:
        """Walks a jaxpr whose inputs are already named; returns its outputs."""
        if jaxpr.effects:
            raise Unpackable(
                f"its training step has side effects ({', '.join(map(str, jaxpr.effects))}); "
                f"{_ALLOWED_CALLBACK_HINT}"
            )
        env: dict[Any, tuple[str, Any]] = {}
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            env[var] = self._constant(value, var.aval, scope)
        for var, operand in zip(jaxpr.invars, operands, strict=True):
            env[var] = operand
        for eqn in jaxpr.eqns:
            self._equation(eqn, env, scope, emit)
        return [self.read(atom, env, scope) for atom in jaxpr.outvars]

    def _equation(
        self,
        eqn: Any,
        env: dict[Any, tuple[str, Any]],
        scope: _Scope | None,
        emit: list[Any] | None,
    ) -> None:
        name = eqn.primitive.name
        operands = [self.read(atom, env, scope) for atom in eqn.invars]
        if name in _UNBATCHED:
            for token, _ in operands:
                self._freeze(token)
        if name in _HARDWARE_RNG or any(jv.is_hardware_key(atom.aval) for atom in eqn.invars):
            self.batched_rng_differs = True
        if name in jv.CALLS:
            inner, consts = jv.call_body(eqn.params)
            outs = self.body(inner, consts, operands, scope, emit)
            for var, out in zip(eqn.outvars, outs, strict=True):
                env[var] = out
            return
        if name.endswith("callback"):
            raise Unpackable(f"its training step calls Python; {_ALLOWED_CALLBACK_HINT}")
        if name == "conv_general_dilated":
            self.convolves = True
        self._write(name)
        for token, _ in operands:
            self._write(token)
        rewritten = self._params(eqn, name, [new for _, new in operands], scope)
        outs = []
        for var in eqn.outvars:
            token = self._fresh()
            self._write(f"{token}:{aval_text(var.aval)}")
            outs.append(token)
        if emit is None:
            for var, token in zip(eqn.outvars, outs, strict=True):
                env[var] = (token, None)
            return
        params, invars = rewritten
        outvars = [jv.Var(var.aval) for var in eqn.outvars]
        emit.append(eqn.replace(invars=invars, outvars=outvars, params=params))
        for var, token, new in zip(eqn.outvars, outs, outvars, strict=True):
            env[var] = (token, new)

    def _params(
        self, eqn: Any, name: str, invars: list[Any], scope: _Scope | None
    ) -> tuple[dict[str, Any], list[Any]]:
        """Writes an equation's parameters; returns them and the operands with bodies rewritten."""
        bodies = _BODIES.get(name)
        if name in jv.REMAT:
            bodies = ("jaxpr",)
        params = dict(eqn.params)
        for key in sorted(params):
            value = params[key]
            if bodies and key in bodies:
                continue
            if key == "policy" and name in jv.REMAT:
                continue  # a function: what to keep in memory, with no effect on numbers
            self._write(key)
            self._write(self._param_text(value))
        if not bodies:
            return params, invars
        inner: list[tuple[str, Any, _Scope | None]] = []
        for key in bodies:
            self._write(key)
            group = params[key] if isinstance(params[key], tuple) else (params[key],)
            for closed in group:
                rewritten, extra = self._rewrite_body(closed, scope)
                inner.append((key, rewritten, extra))
        if scope is None:
            return params, invars
        return _lift_bodies(name, params, invars, inner, scope)

    def _rewrite_body(self, closed: Any, scope: _Scope | None) -> tuple[Any, _Scope | None]:
        is_closed = isinstance(closed, jv.ClosedJaxpr)
        jaxpr = closed.jaxpr if is_closed else closed
        consts = list(closed.consts) if is_closed else []
        if not is_closed and jaxpr.constvars:
            raise Unpackable("its training step holds an open jaxpr with constants")
        self._write("{")
        new_scope = None if scope is None else _Scope(scope)
        emit: list[Any] | None = None if scope is None else []
        invars = []
        operands = []
        for var in jaxpr.invars:
            token = self._fresh()
            self._write(f"{token}:{aval_text(var.aval)}")
            new = None if scope is None else jv.Var(var.aval)
            invars.append(new)
            operands.append((token, new))
        outs = self.body(jaxpr, consts, operands, new_scope, emit)
        for token, _ in outs:
            self._write(token)
        self._write("}")
        if new_scope is None or emit is None:
            return None, None
        rewritten = jv.rewritten(jaxpr, invars, [new for _, new in outs], emit)
        return (jv.ClosedJaxpr(rewritten, []) if is_closed else rewritten), new_scope

    def _param_text(self, value: Any) -> str:
        if isinstance(value, (jv.ClosedJaxpr, jv.Jaxpr)):
            # A body of a primitive we do not rewrite: its constants are part of the identity.
            self._frozen += 1
            self._rewrite_body(value, None)
            self._frozen -= 1
            return "body"
        if isinstance(value, tuple) and any(
            isinstance(v, (jv.ClosedJaxpr, jv.Jaxpr)) for v in value
        ):
            return "(" + ",".join(self._param_text(v) for v in value) + ")"
        if type(value).__name__ == "PRNGImpl":  # its repr holds addresses
            text, threefry = jv.generator(value)
            self.batched_rng_differs |= not threefry
            return text
        return canonical_text(value)


#: Primitives whose initial value ``vmap`` cannot take per trial: it has no rule for that.
_UNBATCHED = frozenset({"reduce", "reduce_window", "select_and_scatter"})
#: Primitives of generators that give other numbers under ``vmap`` than for one trial.
_HARDWARE_RNG = frozenset({"rng_bit_generator", "rng_uniform"})
#: Higher-order primitives whose bodies we rewrite, and the parameters that hold those bodies.
_BODIES = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}


def _lift_bodies(
    name: str,
    params: dict[str, Any],
    invars: list[Any],
    inner: list[tuple[str, Any, Any]],
    scope: _Scope,
) -> tuple[dict[str, Any], list[Any]]:
    """Gives rewritten bodies their lifted values as leading operands."""

    def outer(indices: Sequence[int], extra: _Scope) -> list[Any]:
        return [scope.var(i, extra.extra[i].aval) for i in indices]

    if name == "scan":
        _, body, extra = inner[0]
        indices = sorted(extra.extra)
        params["jaxpr"] = _prepend(body, [extra.extra[i] for i in indices])
        params = jv.more_scan_consts(params, len(indices))
        return params, outer(indices, extra) + invars
    if name == "while":
        (_, cond, cond_extra), (_, body, body_extra) = inner
        cond_indices, body_indices = sorted(cond_extra.extra), sorted(body_extra.extra)
        split = params["cond_nconsts"]
        params["cond_jaxpr"] = _prepend(cond, [cond_extra.extra[i] for i in cond_indices])
        params["body_jaxpr"] = _prepend(body, [body_extra.extra[i] for i in body_indices])
        params["cond_nconsts"] += len(cond_indices)
        params["body_nconsts"] += len(body_indices)
        return params, (
            outer(cond_indices, cond_extra)
            + invars[:split]
            + outer(body_indices, body_extra)
            + invars[split:]
        )
    if name == "cond":
        union = sorted({i for _, _, extra in inner for i in extra.extra})
        avals = {i: extra.extra[i].aval for _, _, extra in inner for i in extra.extra}
        params["branches"] = tuple(
            _prepend(body, [extra.var(i, avals[i]) for i in union]) for _, body, extra in inner
        )
        return params, invars[:1] + [scope.var(i, avals[i]) for i in union] + invars[1:]
    _, body, extra = inner[0]  # remat: an open jaxpr, its operands in order
    indices = sorted(extra.extra)
    params["jaxpr"] = _prepend(body, [extra.extra[i] for i in indices])
    return params, outer(indices, extra) + invars


def _prepend(body: Any, new: list[Any]) -> Any:
    # From JAX 0.12 on a jaxpr is closed and open in one, and is its own ``jaxpr``.
    is_closed = isinstance(body, jv.ClosedJaxpr)
    jaxpr = body.jaxpr if is_closed else body
    invars = [*new, *jaxpr.invars]
    longer = jv.rewritten(jaxpr, invars, jaxpr.outvars, jaxpr.eqns, jaxpr.constvars)
    return jv.ClosedJaxpr(longer, []) if is_closed else longer


def canonicalise(closed: Any) -> Canonical:
    """The fingerprint and the constants of a traced step, a closed jaxpr of ``jax.make_jaxpr``.

    Raises Unpackable where the step has side effects, calls back to Python, or holds parameters
    that cannot be compared between trials.
    """
    walk = _Walk()
    operands = []
    for var in closed.jaxpr.invars:
        token = walk._fresh()
        walk._write(f"{token}:{aval_text(var.aval)}")
        operands.append((token, None))
    outs = walk.body(closed.jaxpr, closed.consts, operands, None, None)
    for token, _ in outs:
        walk._write(token)
    return Canonical(
        walk.fingerprint(), tuple(walk.constants), walk.batched_rng_differs, walk.convolves
    )


def lift(closed: Any, indices: Sequence[int]) -> Any:
    """The step as a closed jaxpr whose first inputs are some of its constants.

    Their numbers are ``indices``, ascending; the inputs of the step follow. Raises Unpackable as
    ``canonicalise`` does.
    """
    walk = _Walk(lift=frozenset(indices))
    walk.arrays = []
    scope = _Scope(None)
    emit: list[Any] = []
    invars = [jv.Var(var.aval) for var in closed.jaxpr.invars]
    operands = [(walk._fresh(), var) for var in invars]
    outs = walk.body(closed.jaxpr, closed.consts, operands, scope, emit)
    leading = [
        scope.extra.get(i) or jv.Var(walk.constants[i].aval) for i in indices
    ]  # lifted, or unused
    arrays = sorted(i for i in scope.extra if i < 0)
    constvars, outvars = [scope.extra[i] for i in arrays], [new for _, new in outs]
    jaxpr = jv.rewritten(closed.jaxpr, [*leading, *invars], outvars, emit, constvars)
    return jv.ClosedJaxpr(jaxpr, [walk.arrays[-i - 1] for i in arrays])


# -- text of avals and parameters; cached, because making it is half of the cost of a fingerprint --

_AVALS: dict[Any, str] = {}
_TEXTS: dict[tuple[type, Any], str] = {}
#: Text that differs between processes (an address) or leaves out values (a long array).
_VAGUE = re.compile(r" at 0x|\b[aA]rray\(")


def aval_text(aval: Any) -> str:
    """Shape, dtype and weak type of an abstract value as text."""
    key = (aval.shape, aval.dtype, getattr(aval, "weak_type", False))
    text = _AVALS.get(key)
    if text is None:
        text = f"{aval.dtype}{list(aval.shape)}{'w' if key[2] else ''}"
        _AVALS[key] = text
    return text


def _bytes_text(array: np.ndarray) -> str:
    raw = np.ascontiguousarray(array).tobytes()
    return raw.hex() if len(raw) <= 32 else hashlib.sha256(raw).hexdigest()


def canonical_text(value: Any) -> str:
    """A parameter of an equation as text that is the same in every process.

    Raises Unpackable where the text would hold an address: two trials could not be compared.
    """
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, enum.Enum):
        return str(value)
    if isinstance(value, np.dtype):
        return f"dtype:{value}"
    if isinstance(value, np.ndarray):
        return f"array:{value.dtype}{list(value.shape)}:{_bytes_text(value)}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({','.join(canonical_text(v) for v in value)})"
    if isinstance(value, dict):
        items = sorted((canonical_text(k), canonical_text(v)) for k, v in value.items())
        return "{" + ",".join(f"{k}={v}" for k, v in items) + "}"
    if isinstance(value, (set, frozenset)):
        return "set(" + ",".join(sorted(canonical_text(v) for v in value)) + ")"
    try:
        cached = _TEXTS.get((type(value), value))
    except TypeError:  # not hashable
        cached = None
    if cached is not None:
        return cached
    if isinstance(value, jax.Array):
        return canonical_text(np.asarray(value))
    text = f"{type(value).__name__}:{value!r}"
    if _VAGUE.search(text):
        raise Unpackable(
            f"its training step holds a {type(value).__name__} that cannot be compared between "
            "trials"
        )
    with contextlib.suppress(TypeError):
        _TEXTS[(type(value), value)] = text
    return text
