"""Rules of loops and branches: their bodies are walked like the step itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax import lax

from paceline.program import jax_compat as jv
from paceline.program.padding.axes import fixed, unify
from paceline.program.padding.contractions import RULES as CONTRACTIONS
from paceline.program.padding.elementwise import RULES as ELEMENTWISE
from paceline.program.padding.emission import emit
from paceline.program.padding.lockstep import (
    Equation,
    NotPaddable,
    Outcome,
    PaddedValue,
    Rule,
    Symbol,
    WalkedJaxpr,
)


def _carried(values: Sequence[PaddedValue]) -> list[PaddedValue]:
    """What is known of carried values in each round: where they lie, not what padding holds."""
    return [PaddedValue(value.axes) for value in values]


def _meet(eqn: Equation, ours: Sequence[PaddedValue], theirs: Sequence[PaddedValue]) -> None:
    """Checks that values lie alike before and after a round, or in all branches."""
    for a, b in zip(ours, theirs, strict=True):
        if len(a.axes) != len(b.axes):
            raise eqn.refuse("carries values of other ranks")
        for x, y in zip(a.axes, b.axes, strict=True):
            unify(x, y)


def _runner(body: WalkedJaxpr, given: Mapping[Symbol, Any]) -> Any:
    """A function of the operands of a body, its padding filled as planned."""
    run = jv.jaxpr_as_fun(emit(body, list(given)))
    return lambda *operands: run(*given.values(), *operands)


def _scan(eqn: Equation) -> Outcome:
    eqn.check_params("jaxpr")
    params = eqn.params[0]
    n_consts, n_carry = jv.scan_counts(params)
    consts, carry = eqn.ins[:n_consts], eqn.ins[n_consts : n_consts + n_carry]
    rows = eqn.ins[n_consts + n_carry :]
    # All rows are as many as ``length`` says, so that their axis is not padded.
    inner = [PaddedValue(row.axes[1:], row.content) for row in rows]
    body = eqn.walk.body([p["jaxpr"] for p in eqn.params], [*consts, *_carried(carry), *inner])
    _meet(eqn, carry, body.outs[:n_carry])
    rounds = fixed(params["length"], eqn.traces)
    made = [PaddedValue((rounds, *value.axes), value.content) for value in body.outs[n_carry:]]
    outs = [*_carried(carry), *made]
    if not body.changed:
        return eqn.made(outs, bodies=(body,))

    def loop(given: Mapping[Symbol, Any], *operands: Any) -> Any:
        run = _runner(body, given)

        def step(carried: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
            found = run(*operands[:n_consts], *carried, *row)
            return found[:n_carry], found[n_carry:]

        carried, made = lax.scan(
            step,
            list(operands[n_consts : n_consts + n_carry]),
            list(operands[n_consts + n_carry :]),
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        return [*carried, *made]

    return eqn.made(outs, replacement=loop, bodies=(body,))


def _while(eqn: Equation) -> Outcome:
    eqn.check_params("cond_jaxpr", "body_jaxpr")
    params = eqn.params[0]
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    for_cond, for_body = eqn.ins[:n_cond], eqn.ins[n_cond : n_cond + n_body]
    carry = eqn.ins[n_cond + n_body :]
    carried = _carried(carry)
    cond = eqn.walk.body([p["cond_jaxpr"] for p in eqn.params], [*for_cond, *carried])
    body = eqn.walk.body([p["body_jaxpr"] for p in eqn.params], [*for_body, *carried])
    _meet(eqn, carry, body.outs)
    if not (cond.changed or body.changed):
        return eqn.made(carried, bodies=(cond, body))

    def loop(given: Mapping[Symbol, Any], *operands: Any) -> Any:
        test, run = _runner(cond, given), _runner(body, given)
        consts = operands[n_cond : n_cond + n_body]
        return lax.while_loop(
            lambda now: test(*operands[:n_cond], *now)[0],
            lambda now: run(*consts, *now),
            list(operands[n_cond + n_body :]),
        )

    return eqn.made(carried, replacement=loop, bodies=(cond, body))


def _cond(eqn: Equation) -> Outcome:
    eqn.check_params("branches")
    counts = {len(p["branches"]) for p in eqn.params}
    if len(counts) > 1:
        raise NotPaddable("the traces differ: a choice has another number of branches")
    branches = [
        eqn.walk.body([p["branches"][i] for p in eqn.params], eqn.ins[1:])
        for i in range(counts.pop())
    ]
    outs = list(branches[0].outs)
    for branch in branches[1:]:
        _meet(eqn, outs, branch.outs)
        pairs = zip(outs, branch.outs, strict=True)
        outs = [PaddedValue(a.axes, max(a.content, b.content)) for a, b in pairs]
    outs = [PaddedValue(value.axes, value.content) for value in outs]
    if not any(branch.changed for branch in branches):
        return eqn.made(outs, bodies=tuple(branches))

    def choose(given: Mapping[Symbol, Any], which: Any, *operands: Any) -> Any:
        functions = [_runner(branch, given) for branch in branches]
        # An index may be a truth value, as ``lax.cond`` gives it.
        return lax.switch(which.astype("int32"), functions, *operands)

    return eqn.made(outs, replacement=choose, bodies=tuple(branches))


#: All rules there are.
RULES: dict[str, Rule] = {
    **ELEMENTWISE,
    **CONTRACTIONS,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
