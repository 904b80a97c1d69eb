"""Every operation on each element: its own elements come out as alone, its padding as claimed.

Each operation is tried on operands whose padding is zero, finite or anything (NaN and infinity
included), in all combinations, along an axis whose own elements do not come first.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from marks import slow_where
from paceline.program.padding import elementwise as elementwise_rules
from paceline.program.padding.axes import NotPaddable
from paceline.program.padding.elementwise import RULES as ALL
from paceline.program.padding.elementwise import elementwise
from paceline.program.padding.lockstep import Padding
from program.padding import walks
from program.padding.elementwise_cases import NEW, OPERATIONS, WEAKER
from program.padding.walks import N, W, broken, elsewhere, faults, float64, stronger, walk, without

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
