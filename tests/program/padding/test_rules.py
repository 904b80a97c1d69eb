"""Every rule that moves or combines elements: right as it is, and wrong once it is broken.

The rules of operations on each element are in ``test_elementwise_rules.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from paceline.program.canonical import canonicalise
from paceline.program.padding import contractions, elementwise, loops
from paceline.program.padding.axes import Axis, NotPaddable
from paceline.program.padding.lockstep import Equation, PaddedValue, PlannedEquation
from paceline.program.padding.widths import FamilyStep
from paceline.program.trace import Step
from program.padding.rule_cases import CASES, KEY, ZERO, of
from program.padding.walks import (
    RULES,
    TRIALS,
    Case,
    N,
    W,
    as_traced,
    broken,
    elsewhere,
    faults,
    float64,
    misfilled,
    operations,
    program,
    seen,
    stronger,
    unfilled,
    walk,
    without,
)

#: These are new in JAX 0.7 and later; before, the same functions were made of other primitives.
NEW = {"stack", "unstack", "tile"}
#: What these make lies where what it meets lies.
ANYWHERE = {"iota", "random_bits"}
FILL = [
    *("dot_general", "conv_general_dilated", "scatter-add", "argmax", "argmin"),
    *(name for name in CASES if name.startswith("cum")),
    *("reduce_sum", "reduce_prod", "reduce_max", "reduce_min"),
    *("reduce_and", "reduce_or", "reduce_xor"),
]
REPLACE = ["random_bits", "scan", "while", "cond"]


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    with float64():
        yield


def cases_of(name: str) -> list[Case]:
    """The cases that hold the primitive in this version of JAX."""
    found = [case for case in CASES[name] if name in operations(case)]
    assert found or name in NEW, f"no case of {name}"
    return found


def test_every_rule_has_a_case() -> None:
    assert {*CASES} == {n for n, rule in RULES.items() if rule is not elementwise.elementwise}


@pytest.mark.parametrize("name", CASES)
def test_a_trial_is_the_trial_alone(name: str) -> None:
    for case in CASES[name][2::3] or CASES[name][:1]:
        assert faults(case, trial=TRIALS[0]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_all_trials_are_the_trials_alone(name: str) -> None:
    for case in CASES[name]:
        for trial in (*TRIALS, W, N):
            assert faults(case, trial=trial) == []


@pytest.mark.parametrize("name", CASES)
def test_without_its_rule_an_operation_is_refused(name: str) -> None:
    for case in cases_of(name):
        with pytest.raises(NotPaddable, match=f"^{name} has no rule"):
            walk(case, [W, N, TRIALS[0]], without(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_stronger_claim_about_padding_is_seen(name: str) -> None:
    cases = cases_of(name)
    assert not cases or seen(cases, broken([name], stronger))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in ANYWHERE])
def test_where_own_elements_lie_is_seen(name: str) -> None:
    cases = cases_of(name)
    assert not cases or seen(cases, broken([name], elsewhere))


def plans_of(name: str, case: Case) -> list[PlannedEquation]:
    planned = walk(case, [W, N, TRIALS[0]], RULES).planned
    return [plan for plan in planned if plan.eqn.primitive.name == name]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_each_fill_is_needed(name: str) -> None:
    """Left out, or with another number, a trial comes out otherwise."""
    n_fills = 0
    for case in cases_of(name):
        for i in range(max(len(plan.fills) for plan in plans_of(name, case))):
            n_fills += 1

            def one_left_out(
                eqn: Equation, outs: Sequence[PaddedValue], plan: PlannedEquation, i: int = i
            ) -> Any:
                fills = (fill for j, fill in enumerate(plan.fills) if j != i)
                return outs, replace(plan, fills=tuple(fills))

            assert seen([case], broken([name], one_left_out)), f"fill {i} of {case}"
    if n_fills:
        assert seen(CASES[name], broken([name], unfilled))
        assert seen(CASES[name], broken([name], misfilled))
    assert bool(n_fills) == (name in FILL)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_what_replaces_an_equation_is_needed(name: str) -> None:
    replaced = [c for c in cases_of(name) if any(p.replacement for p in plans_of(name, c))]
    assert bool(replaced) == (name in REPLACE)
    assert not replaced or seen(replaced, broken([name], as_traced))


# -- where elements lie ---------------------------------------------------------------------------


def _twisted(run: Any, *more: Any, dims: Sequence[Any] = ()) -> Case:
    """Two operands of one shape, in which a trial's own elements lie in other places."""
    return program(run, of("3*u", *dims), of("u*3", *dims), *more)


def _scatter_rows(w: Any, x: Any, y: Any) -> Any:
    return x.at[:, jnp.array([0])].add(y[:, None])


CONFLICTS: dict[str, Case] = {
    "add": _twisted(lambda w, x, y: x + y),
    "concatenate": _twisted(lambda w, x, y: jnp.concatenate([x, y], 1), dims=[2]),
    "dot_general": _twisted(lambda w, x, y: jnp.dot(x, y)),
    "dot_general over a batch": _twisted(lambda w, x, y: jnp.einsum("ij,ij->i", x, y), dims=[2]),
    "sort": _twisted(lambda w, x, y: lax.sort((x, y), dimension=1), dims=[3]),
    "dynamic_update_slice": program(
        lambda w, x, y: lax.dynamic_update_slice(x, y, (0, 1)), of("3*u", 4), of("u*3", 2)
    ),
    "select_and_scatter_add": program(
        CASES["select_and_scatter_add"][0].run, of("3*u", 6, 2), of("u*3", 3, 2)
    ),
    "gather": program(CASES["gather"][1].run, of("3*u", 4), of("u*3", kind="index")),
    "scatter-add": program(_scatter_rows, of("3*u", 4), of("u*3")),
    "scatter-add of rows": program(
        CASES["scatter-add"][0].run, of(4, 2), of("3*u", kind="index"), of("u*3", 2)
    ),
    "scan": _twisted(lambda w, x, y: lax.scan(lambda c, _: (c[::-1], None), (x, y), length=3)[0]),
    "while": _twisted(
        lambda w, x, y: lax.while_loop(
            lambda now: now[0] < 1, lambda now: (now[0] + 1, now[2], now[1]), (0, x, y)
        )
    ),
    "cond": _twisted(
        lambda w, x, y, f: lax.cond(f[0], lambda a, b: a, lambda a, b: b, x, y), of(1, kind="true")
    ),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_operands_that_lie_otherwise_are_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And must be: without a look at where they lie, results are those of no trial."""
    with pytest.raises(NotPaddable, match=r"is split at|has parts that another one has not"):
        faults(CONFLICTS[name])
    for module in (elementwise, contractions, loops):
        monkeypatch.setattr(module, "unify", lambda first, second: first)
    assert faults(CONFLICTS[name])


POSITIONS: dict[str, Case] = {
    "iota": program(CASES["iota"][0].run, of("3*u", 2)),
    "argmax": program(CASES["argmax"][0].run, of("3*u", "v")),
    "argmin": program(CASES["argmin"][0].run, of("3*u", "v")),
    "random_bits": program(CASES["random_bits"][0].run, KEY, of("3*u", 2, kind="uint32")),
    "axes one after another": program(CASES["iota"][0].run, of("u+v")),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_are_counted_where_own_elements_come_first(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotPaddable, match="positions are counted along an axis that is made of"):
        faults(POSITIONS[name])
    monkeypatch.setattr(Axis, "require_prefix", lambda axis: None)
    assert faults(POSITIONS[name])


# -- what loops and repetition know of padding ---------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scan", "while"])
def test_nothing_is_known_of_carried_padding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is zero before the first round, and something else after."""
    monkeypatch.setattr(loops, "_carried", list)
    assert seen(CASES[name], RULES)


def test_what_is_repeated_into_padding_is_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operand of extent 1 has no padding, but its own element goes into that of the result."""
    case = program(
        lambda w, x, y: lax.add(x, y), of(1, "3*v", holds=ZERO), of("u", "3*v", holds=ZERO)
    )
    try:
        operations(case)
    except TypeError:  # JAX 0.6 repeats it by an operation of its own, which has a rule
        return
    assert faults(case) == []
    monkeypatch.setattr(elementwise, "_stretched", lambda value, axes: value)
    assert faults(case) == ["result 0: padding is not zero"]


# -- what has no proof ---------------------------------------------------------------------------


def _pooled(init: float, window: tuple[int, ...]) -> Any:
    return lambda w, x: lax.reduce_window(x, init, lax.add, window, (1, 1), "VALID")


REFUSED: list[tuple[str, Case]] = [
    ("rev turns a padded axis round", program(lambda w, x: lax.rev(x, (0,)), of("u"))),
    (
        "takes every second element or fewer",
        program(lambda w, x: lax.slice(x, (0,), x.shape, (2,)), of("u")),
    ),
    ("pad cuts or spreads", program(lambda w, x: lax.pad(x, 0.0, [(0, 0, 1)]), of("u"))),
    ("pad cuts or spreads", program(lambda w, x: lax.pad(x, 0.0, [(-1, 0, 0)]), of("u"))),
    (
        "conv_general_dilated moves along a padded axis",
        program(CASES["conv_general_dilated"][0].run, of(2, 3, "v"), of(2, 3, 2)),
    ),
    (
        "conv_general_dilated has groups along a padded axis",
        program(
            lambda w, x, k: lax.conv_general_dilated(x, k, (1,), "VALID", feature_group_count=2),
            of(2, 4, 4),
            of("2*u", 2, 2),
        ),
    ),
    ("reduce_window_sum moves along a padded axis", program(_pooled(0.0, (2, 1)), of("u", 2))),
    ("sort orders a padded axis", program(lambda w, x: lax.sort(x), of("u"))),
    ("top_k orders a padded axis", program(lambda w, x: lax.top_k(x, 2), of("u"))),
    (
        "dynamic_slice takes a part of a padded axis",
        program(lambda w, x: lax.dynamic_slice(x, (1,), (2,)), of("u")),
    ),
    (
        "dynamic_update_slice replaces a part of a padded axis",
        program(lambda w, x, y: lax.dynamic_update_slice(x, y, (0,)), of("u"), of(2)),
    ),
    (
        "gather takes numbers for positions along a padded axis",
        program(CASES["gather"][0].run, of("u", 2), of(3, kind="index")),
    ),
    (
        "scatter-add takes numbers for positions along a padded axis",
        program(CASES["scatter-add"][0].run, of("u", 2), of(3, kind="index"), of(3, 2)),
    ),
    (
        "scatter writes padded rows",
        program(lambda w, x, i, y: x.at[i].set(y), of(4), of("u", kind="index"), of("u")),
    ),
    *[
        (
            "scatter-add promises something of the numbers of padded rows",
            program(
                lambda w, x, i, y, p=promise: x.at[i].add(y, **{p: True}),
                of(4),
                of("u", kind="index"),
                of("u"),
            ),
        )
        for promise in ("unique_indices", "indices_are_sorted")
    ],
    (
        "random_bits draws words of 8 bits",
        program(
            lambda w, k: jax.random.bits(k, (2, w["u"]), "uint8"),
            KEY,
        ),
    ),
    (
        "scan has another length",
        program(lambda w, x: lax.scan(lambda c, r: (c + r, r), 0.0, x), of("u")),
    ),
    (
        "fft has no rule for padded operands",
        program(lambda w, x: jnp.fft.fft(x), of("u", 3)),
    ),
]


@pytest.mark.parametrize(("why", "case"), REFUSED)
def test_what_no_rule_proves_is_refused(why: str, case: Case) -> None:
    with pytest.raises(NotPaddable, match=why):
        walk(case, [W, {"u": 4, "v": 4}, TRIALS[1]], RULES)


def test_what_is_repeated_in_some_traces_only_is_refused() -> None:
    """The program would take the one element of a trial for its first one, and the rest for own."""
    case = program(lambda w, x: lax.broadcast_in_dim(x, (2, w["v"]), (1,)), of("u"))
    with pytest.raises(NotPaddable, match="repeats an axis in some traces only"):
        walk(case, [{"u": 6, "v": 6}, {"u": 4, "v": 4}, {"u": 1, "v": 3}], RULES)


def test_parts_that_no_value_shows_are_looked_at_too() -> None:
    """What is left out of a slice may be longer in a trial than in the program."""
    case = program(lambda w, x: x[w["v"] :], of("u"))
    with pytest.raises(NotPaddable, match=r"an axis has a part of extents \(2, 1, 4\)"):
        walk(case, [{"u": 9, "v": 2}, {"u": 5, "v": 1}, {"u": 7, "v": 4}], RULES)
    with pytest.raises(NotPaddable, match=r"an axis has a part of extents \(2, 2, 1\)"):
        walk(case, [{"u": 9, "v": 2}, {"u": 5, "v": 2}, {"u": 7, "v": 1}], RULES)


def test_top_k_orders_the_axis_that_it_is_told() -> None:
    """The axis is a parameter since JAX 0.8."""
    case = program(lambda w, x: lax.top_k(x.T, 2), of(5, "3*u"))
    assert faults(case) == []
    if "axis" in inspect.signature(lax.top_k).parameters:
        assert faults(program(lambda w, x: lax.top_k(x, 2, axis=0), of(5, "3*u"))) == []


def test_a_whole_number_of_width_and_batch_is_refused() -> None:
    """A trial tells its number on full batches only; the smaller batch has another one."""

    def step(width: int, batch: int, factor: int) -> Step:
        shapes = [
            jax.ShapeDtypeStruct((width,), "int32"),
            jax.ShapeDtypeStruct((batch,), "float32"),
        ]
        closed = jax.make_jaxpr(lambda w, x: (x.sum()[None], w * (width * factor)))(*shapes)
        return Step(closed, canonicalise(closed), ("loss",))

    full, small = ([step(width, n, n) for width in (6, 3)] for n in (8, 5))
    with pytest.raises(NotPaddable, match="the smaller batch has other extents"):
        FamilyStep((full[0], full[1]), (small[0], small[1]))
    full, small = ([step(width, n, 2) for width in (6, 3)] for n in (8, 5))
    role = FamilyStep((full[0], full[1]), (small[0], small[1]))
    assert role.admit(step(4, 8, 2))[0].canonical.constants[1].value == 8
    with pytest.raises(NotPaddable, match="another axis or number differs"):
        FamilyStep((step(6, 8, 1), step(3, 8, 2)), None).admit(step(4, 8, 2))
