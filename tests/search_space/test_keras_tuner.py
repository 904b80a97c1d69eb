"""The same declarations on KerasTuner's hp and on ours: same values, activity and configs."""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.errors import SpaceError
from paceline.search_space import HyperParameters


@pytest.fixture(scope="module")
def theirs() -> Any:
    """KerasTuner's HyperParameters class."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # keras_tuner and its protos warn while they are imported
        import keras_tuner
    return keras_tuner.HyperParameters


# A fixture of module scope is the same for every example.
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def declare(hp: Any, call: dict[str, Any]) -> Any:
    """Make one call on either hp, inside its scopes."""
    with contextlib.ExitStack() as scopes:
        for scope in call.get("name_scopes", ()):
            scopes.enter_context(hp.name_scope(scope))
        for parent, values in call.get("conditions", ()):
            scopes.enter_context(hp.conditional_scope(parent, values))
        return getattr(hp, call["method"])(call["name"], **call["arguments"])


NUMBERS = [
    ("Int", {"min_value": 1, "max_value": 9}),
    ("Int", {"min_value": 6, "max_value": 13, "step": 3}),
    ("Int", {"min_value": -4, "max_value": 4, "step": 2, "default": 2}),
    ("Int", {"min_value": 5, "max_value": 5}),
    ("Int", {"min_value": 2, "max_value": 32, "step": 2, "sampling": "log"}),
    ("Int", {"min_value": 2, "max_value": 33, "step": 2, "sampling": "log"}),
    ("Int", {"min_value": 3, "max_value": 250, "step": 5, "sampling": "reverse_log"}),
    ("Int", {"min_value": 1, "max_value": 1000, "sampling": "log", "default": 10}),
    ("Int", {"min_value": 1, "max_value": 1000, "sampling": "reverse_log"}),
    ("Int", {"min_value": 32.0, "max_value": 64.0, "step": 32.0}),
    ("Int", {"min_value": 1, "max_value": 4, "default": 100}),
    ("Int", {"min_value": 1, "max_value": 9, "step": 4, "default": 2}),
    ("Float", {"min_value": 0, "max_value": 1}),
    ("Float", {"min_value": 0, "max_value": 1, "step": 0.25}),
    ("Float", {"min_value": 0.1, "max_value": 0.75, "step": 0.25, "default": 0.35}),
    ("Float", {"min_value": 1e-4, "max_value": 1e-2, "sampling": "log"}),
    ("Float", {"min_value": 1e-4, "max_value": 1e-2, "sampling": "LOG", "default": 1e-3}),
    ("Float", {"min_value": 1e-4, "max_value": 1e-2, "sampling": "reverse_log"}),
    ("Float", {"min_value": 0.001, "max_value": 10, "step": 10, "sampling": "log"}),
    ("Float", {"min_value": 1, "max_value": 8, "step": 2, "sampling": "reverse_log"}),
    ("Float", {"min_value": -2, "max_value": 2, "sampling": None}),
    ("Float", {"min_value": 0.5, "max_value": 0.5}),
]
CHOICES = [
    ("Choice", {"values": ["a", "b", "c"]}),
    ("Choice", {"values": ["a", "b", "c"], "default": "b"}),
    ("Choice", {"values": (16, 32, 64), "default": 32}),
    ("Choice", {"values": [0.25, 0.4], "ordered": False}),
    ("Choice", {"values": [3, 1, 2], "ordered": True}),
    ("Boolean", {}),
    ("Boolean", {"default": True}),
    ("Fixed", {"value": 3}),
    ("Fixed", {"value": "relu"}),
    ("Fixed", {"value": 0.5}),
    ("Fixed", {"value": True}),
]


@pytest.mark.parametrize(("method", "arguments"), NUMBERS + CHOICES)
def test_defaults_and_configs(theirs: Any, method: str, arguments: dict[str, Any]) -> None:
    call = {"method": method, "name": "h", "arguments": arguments}
    kt, ours = theirs(), HyperParameters()
    assert declare(ours, call) == declare(kt, call)
    assert ours.values == kt.values
    (their_hp,), (our_hp,) = kt.space, ours.space
    assert our_hp.name == their_hp.name
    assert our_hp.default == their_hp.default
    assert list(our_hp.conditions) == their_hp.conditions == []
    # Each reads the other's config; theirs writes Int's default only where it was given.
    assert theirs.from_config(ours.get_config()).space[0].default == their_hp.default
    their_config = kt.get_config()["space"][0]["config"]
    our_config = ours.get_config()["space"][0]["config"]
    if their_config.get("default", 0) is None:
        their_config["default"] = their_hp.default
    assert our_config == {k: list(v) if k == "values" else v for k, v in their_config.items()}
    assert HyperParameters.from_config(kt.get_config()).get_config() == ours.get_config()


@pytest.mark.parametrize(
    ("method", "arguments"), [entry for entry in NUMBERS if "step" in entry[1]] + CHOICES
)
def test_grids_hold_the_same_values(theirs: Any, method: str, arguments: dict[str, Any]) -> None:
    call = {"method": method, "name": "h", "arguments": arguments}
    kt, ours = theirs(), HyperParameters()
    declare(kt, call)
    declare(ours, call)
    expected = sorted(kt.space[0].values)
    if method == "Int":
        expected = [round(value) for value in expected]  # theirs are floats on a log scale
    # Theirs add up float steps: 1e-12 relative is some thousand roundings.
    assert sorted(ours.space[0].values) == (
        pytest.approx(expected, rel=1e-12) if method == "Float" else expected
    )


def test_the_upper_bound_of_a_float_with_steps_is_included(theirs: Any) -> None:
    # KerasTuner documents [0, 0.2, ..., 1.0] and loses 1.0 in 1.0 // 0.2 == 4.0; ours has it.
    kt, ours = theirs(), HyperParameters()
    for hp in (kt, ours):
        hp.Float("x", 0, 1, step=0.2)
    assert len(list(kt.space[0].values)) == 5
    assert list(ours.space[0].values) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


@pytest.mark.parametrize(
    ("method", "arguments"), [entry for entry in NUMBERS if "step" not in entry[1]]
)
@given(share=st.floats(0, 1, exclude_max=True))
@shared
def test_scales_are_the_same(
    theirs: Any, method: str, arguments: dict[str, Any], share: float
) -> None:
    """Every value that KerasTuner draws is one of ours, at the same place of its scale."""
    call = {"method": method, "name": "h", "arguments": arguments}
    kt, ours = theirs(), HyperParameters()
    declare(kt, call)
    declare(ours, call)
    (parameter,) = ours.parameters.values()
    value = kt.space[0].prob_to_value(share)
    if method == "Int":
        # Theirs goes one beyond the upper bound where share rounds to 1.
        value = min(value, arguments["max_value"])
        assert parameter.check(value) == value
        return
    # Theirs may leave the bounds by a rounding error.
    value = min(max(value, arguments["min_value"]), arguments["max_value"])
    stored: Any = parameter.to_storage(value)
    low, high = float(arguments["min_value"]), float(arguments["max_value"])
    if low == high:
        return
    scale: Any = math.log if parameter.distribution.log else float  # type: ignore[union-attr]
    position = (scale(stored) - scale(low)) / (scale(high) - scale(low))
    # Ours is mirrored where theirs is reversed; the mirror image of 1e-4 keeps 14 digits of it.
    expected = 1 - share if parameter.mirrored else share
    assert position == pytest.approx(expected, abs=1e-9)


@st.composite
def programs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A build: parents, then hyperparameters under conditions on them or in name scopes."""
    calls: list[dict[str, Any]] = [
        {"method": "Choice", "name": "type", "arguments": {"values": ["a", "b", "c"]}},
        {"method": "Boolean", "name": "flag", "arguments": {}},
        {"method": "Int", "name": "depth", "arguments": {"min_value": 1, "max_value": 3}},
    ]
    conditions = st.one_of(
        st.tuples(st.just("type"), st.lists(st.sampled_from("abcz"), min_size=1, max_size=2)),
        st.tuples(st.just("flag"), st.sampled_from([[True], [False], [True, False]])),
        st.tuples(st.just("depth"), st.lists(st.integers(1, 3), min_size=1, max_size=2)),
    )
    for position in range(draw(st.integers(1, 5))):
        method, arguments = draw(st.sampled_from(NUMBERS[:6] + NUMBERS[12:16] + CHOICES))
        under: list[Any] = []
        if draw(st.booleans()):
            under.append(draw(conditions))
        calls.append(
            {
                "method": method,
                "name": f"h{position}",
                "arguments": arguments,
                "conditions": under,
                "name_scopes": [] if under else draw(st.lists(st.sampled_from("st"), max_size=2)),
            }
        )
        if draw(st.booleans()):
            calls.append(calls[-1])  # asked again
    return calls


def assert_same(kt: Any, ours: HyperParameters) -> None:
    assert ours.values == kt.values
    assert ours.hparams == kt.values
    assert [hp.name for hp in ours.space] == [hp.name for hp in kt.space]
    assert [hp.get_config()["conditions"] for hp in ours.space] == [
        entry["config"]["conditions"] for entry in kt.get_config()["space"]
    ]
    for mine, their in zip(ours.space, kt.space, strict=True):
        assert ours.is_active(mine) == kt.is_active(their)
        assert ours.is_active(mine.name) == kt.is_active(their.name)
        assert (mine.name in ours) == (their.name in kt)


@given(programs())
@shared
def test_a_build_with_defaults(theirs: Any, program: list[dict[str, Any]]) -> None:
    kt, ours = theirs(), HyperParameters()
    for call in program:
        assert declare(ours, call) == declare(kt, call)
    assert_same(kt, ours)
    copy = ours.copy()
    assert copy.get_config() == ours.get_config()
    assert copy.hparams == ours.hparams
    assert copy.parameters == ours.parameters
    assert_same(theirs.from_config(ours.get_config()), ours)


@given(programs(), st.randoms(use_true_random=False))
@shared
def test_a_build_with_chosen_values(
    theirs: Any, program: list[dict[str, Any]], random: Any
) -> None:
    ours = HyperParameters(chooser=lambda parameter: random.choice(parameter.values()))
    returned = [declare(ours, call) for call in program]
    kt = theirs()
    kt.values = dict(ours.hparams)
    assert [declare(kt, call) for call in program] == returned
    assert_same(kt, ours)
    # The same configuration given as values, and by way of storage, is the same again.
    fixed = HyperParameters(values=ours.hparams)
    assert [declare(fixed, call) for call in program] == returned
    assert (fixed.hparams, fixed.unused) == (ours.hparams, [])
    assert fixed.to_storage() == ours.to_storage()
    for name, stored in ours.to_storage().items():
        parameter = ours.parameters[name]
        assert parameter.from_storage(stored) == ours.values[parameter.name]


def test_nested_scopes_and_parents_by_argument(theirs: Any) -> None:
    def build(hp: Any) -> list[Any]:
        out = [hp.Choice("type", ["a", "b"])]
        with hp.name_scope("net"):
            out.append(hp.Boolean("deep", default=True))
            with hp.conditional_scope("deep", [True]):
                out.append(hp.Choice("act", ["relu", "elu"]))
                with hp.conditional_scope("act", "relu"):
                    out.append(hp.Float("slope", 0, 1))
                    out.append("slope" in hp)
                    out.append(hp.get("slope") if "slope" in hp else None)
                with hp.conditional_scope("act", ["elu"]):
                    out.append(hp.Float("alpha", 0, 1))
                    out.append("alpha" in hp)
        out.append(hp.Int("units", 1, 5, parent_name="type", parent_values=["a"]))
        out.append(hp.Int("units", 10, 50, parent_name="type", parent_values=["b"]))
        out.append(hp["net/deep"])
        return out

    kt, ours = theirs(), HyperParameters()
    assert build(ours) == build(kt)
    assert_same(kt, ours)
    fresh = theirs()
    fresh.values = {"type": "b", "net/deep": False}
    ours = HyperParameters(values=dict(fresh.values))
    assert build(ours) == build(fresh)
    assert_same(fresh, ours)
    assert list(ours.parameters) == ["type", "net/deep", "units[type=b]"]


def child_of_itself(hp: Any) -> None:
    hp.Choice("p", [1, 2])
    hp.Int("p", 1, 2, parent_name="p", parent_values=1)


def get_inactive(hp: Any) -> None:
    hp.Choice("p", [1, 2])
    hp.Int("a", 1, 2, parent_name="p", parent_values=2)
    hp.get("a")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda hp: hp.Int("a", 5, 1), SpaceError),
        (lambda hp: hp.Int("a", 1.5, 3), SpaceError),
        (lambda hp: hp.Int("a", 1, 5, step=1.5), SpaceError),
        (lambda hp: hp.Int("a", 0, 5, sampling="log"), SpaceError),
        (lambda hp: hp.Int("a", 1, 5, step=1, sampling="log"), SpaceError),
        (lambda hp: hp.Float("a", -1, 5, sampling="reverse_log"), SpaceError),
        (lambda hp: hp.Float("a", 0, 5, sampling="cubic"), SpaceError),
        (lambda hp: hp.Choice("a", []), SpaceError),
        (lambda hp: hp.Choice("a", [1, 2], default=3), SpaceError),
        (lambda hp: hp.Choice("a", ["x"], ordered=True), SpaceError),
        (lambda hp: hp.Boolean("a", default=2), SpaceError),
        (lambda hp: hp.Fixed("a", None), SpaceError),
        (lambda hp: hp.Fixed("a", [1]), SpaceError),
        (lambda hp: hp.Int("a", 1, 2, parent_name="b", parent_values=[1]), SpaceError),
        (lambda hp: hp.get("a"), KeyError),
        (lambda hp: hp["a"], KeyError),
        (child_of_itself, SpaceError),
        (get_inactive, ValueError),
    ],
)
def test_what_they_refuse_we_refuse(theirs: Any, call: Any, error: type[Exception]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError), match=r"\w"):
        call(theirs())
    with pytest.raises(error, match=r"hp\.") as caught:
        call(HyperParameters())
    assert isinstance(caught.value, SpaceError)


def test_merge_and_ensure_active_values(theirs: Any) -> None:
    def other(cls: Any) -> Any:
        hp = cls()
        hp.Int("a", 1, 9, default=7)
        hp.Float("b", 0, 1, default=0.5)
        return hp

    for overwrite in (True, False):
        kt, ours = theirs(), HyperParameters()
        for hp in (kt, ours):
            hp.values["a"] = 3
            hp.Int("a", 1, 9)
            hp.merge(other(type(hp)), overwrite=overwrite)
        assert ours.values == kt.values == {"a": 7 if overwrite else 3, "b": 0.5}

    kt, ours = theirs(), HyperParameters()
    for hp in (kt, ours):
        hp.Choice("type", ["a", "b"])
        hp.Fixed("of_a", 1, parent_name="type", parent_values=["a"])
        hp.Fixed("of_b", 2, parent_name="type", parent_values=["b"])
        hp.values["type"] = "b"
        with contextlib.suppress(AttributeError):
            hp.ensure_active_values()
    assert ours.values == {"type": "b", "of_b": 2}
    assert kt.values.keys() == ours.values.keys()
