"""Every operation on each element: its own elements come out as alone, its padding as claimed.

Each operation is tried on operands whose padding is zero, finite or anything (NaN and infinity
included), in all combinations, along an axis whose own elements do not come first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import pytest

from marks import slow_where
from paceline.program.padding import elementwise as elementwise_rules
from paceline.program.padding import emission
from paceline.program.padding.axes import NotPaddable
from paceline.program.padding.elementwise import RULES as ALL
from paceline.program.padding.elementwise import elementwise, to_zero
from paceline.program.padding.emission import emit
from paceline.program.padding.lockstep import Padding
from program.padding import walks
from program.padding.elementwise_cases import NEW, OPERATIONS, WEAKER
from program.padding.walks import (
    Case,
    Input,
    N,
    W,
    broken,
    elsewhere,
    faults,
    float64,
    program,
    stronger,
    walk,
    without,
)

TRIAL = {"u": 3, "v": 5}


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    with float64():
        yield


def test_every_operation_has_a_case() -> None:
    names = {name for name, rule in ALL.items() if rule is elementwise}
    assert names - {name.split()[0] for name in OPERATIONS} <= NEW
    assert {name.split()[0] for name in OPERATIONS} <= names


#: Operations of which more is known than that they may make anything of padding.
KNOWN = elementwise_rules._KEEP_ZERO | elementwise_rules._KEEP_FINITE | {"mul", "div"}


@pytest.mark.parametrize("name", slow_where(OPERATIONS, lambda n: n.split()[0] not in KNOWN))
def test_own_elements_are_those_of_the_trial_alone(name: str) -> None:
    assert faults(OPERATIONS[name].case(), trial=TRIAL) == []


@pytest.mark.parametrize("name", OPERATIONS)
def test_without_its_rule_an_operation_is_refused(name: str) -> None:
    primitive = name.split(maxsplit=1)[0]
    with pytest.raises(NotPaddable, match=f"^{primitive} has no rule"):
        walk(OPERATIONS[name].case("A"), [W, N, TRIAL], without(primitive))


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_stronger_claim_is_false(name: str) -> None:
    """Nor is a claim weaker than it may be, where it is not said to be."""
    operation, primitive = OPERATIONS[name], name.split(maxsplit=1)[0]
    case, combinations = operation.case(), operation.combinations()
    found = faults(case, broken([primitive], stronger), TRIAL)
    false = {combinations[int(fault.split()[1].rstrip(":"))] for fault in found}
    outs = walk(case, [W, N, TRIAL], walks.RULES).outs
    claims = dict(zip(combinations, outs, strict=True))
    could_be = {
        c for c, out in claims.items() if out.content is not Padding.ZERO and c not in false
    }
    assert could_be == set(WEAKER.get(name, "").split())
    assert false, "some claim is as strong as it can be"


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_where_own_elements_lie_matters(name: str) -> None:
    found = faults(OPERATIONS[name].case(), broken([name.split(maxsplit=1)[0]], elsewhere), TRIAL)
    assert any(fault.endswith("other numbers than alone") for fault in found)


# -- zeros that an operation makes of its operands' zeros ------------------------------------------

#: Operations whose result is filled by filling operands.
TO_ZERO = [
    name
    for name, operation in OPERATIONS.items()
    if name.split()[0] in elementwise_rules._KEEP_ZERO | {"mul", "div"}
    and not {name.split()[0]} & {"add", "sub", "add_any", "optimization_barrier", "device_put"}
    and not {"int32", "complex"} & {*operation.kinds}
    and name not in ("xor", "convert_element_type to int32")
]
QUICK = {"tanh", "mul", "div", "max", "select_n"}


def _multiplied(name: str) -> Case:
    """The results of an operation, in products that sum over an axis with NaN in its padding."""
    case = OPERATIONS[name].case()

    def run(widths: Any, other: Any, *arrays: Any) -> list[Any]:
        found = [out.astype(other.dtype) for out in case.run(widths, *arrays)]
        return [*found, *(out @ other for out in found)]

    return Case(run, (Input(("v", 3)), *case.inputs))


@pytest.mark.parametrize("name", slow_where(TO_ZERO, lambda name: name not in QUICK))
def test_zeros_in_the_operands_named_are_enough(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, used = _multiplied(name), []

    def noted(*args: Any) -> Any:
        used.append(to_zero(*args))
        return used[-1]

    monkeypatch.setattr(emission, "to_zero", noted)
    assert faults(case, trial=TRIAL) == []
    assert any(used)
    # And they are needed.
    monkeypatch.setattr(emission, "to_zero", lambda *args: () if to_zero(*args) else None)
    assert faults(case, trial=TRIAL)


def test_an_array_that_needs_zeros_is_made_once() -> None:
    """Else it would be stored twice, once with the zeros and once without."""

    def layer(_: Any, x: Any, kernel: Any, delta: Any) -> list[Any]:
        z = x @ kernel
        h = jnp.tanh(z)
        back = delta * (1 - h * h)
        return [h @ kernel.T, jnp.tensordot(h, back, (0, 0)), jnp.tensordot(x, back, (0, 0))]

    case = program(layer, ("u", 3), (3, 4), ("u", 4))
    assert faults(case) == []
    body = walk(case, [W, N, TRIAL], walks.RULES)
    eqns = emit(body, list(body.ins[0].axes[0].symbols())).jaxpr.eqns
    made = {var: eqn for eqn in eqns for var in eqn.outvars}
    products = [eqn for eqn in eqns if eqn.primitive.name == "dot_general"]
    first, forward, *backward = products
    assert made[first.invars[0]].params["name"] == "_where"
    assert made[forward.invars[0]].primitive.name == "tanh"
    for product in backward:
        assert made[product.invars[1]].primitive.name == "mul"
    # Before tanh, of the input, and of both factors of ``back``.
    assert sum(eqn.params.get("name") == "_where" for eqn in eqns) == 4
