"""hp as a build meets it: values given and chosen, names in storage, errors that say what to do."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from paceline.errors import SpaceError
from paceline.search_space import HyperParameters, Parameter


def test_hparams_and_storage_names() -> None:
    hp = HyperParameters()
    hp.Choice("type", ["a", "b"], default="b")
    hp.Fixed("note", "hello")
    with hp.conditional_scope("type", ["a"]):
        hp.Int("units", 1, 4)
    with hp.conditional_scope("type", ["b", "c"]):
        hp.Int("units", 16, 64, step=16)
        hp.Boolean("deep", default=True)
        with hp.name_scope("net"):
            hp.Float("lr", 1e-4, 1e-2, sampling="reverse_log", parent_name=None)
    with hp.conditional_scope("type", "b"), hp.conditional_scope("deep", True):
        hp.Float("rate", 0, 1)
    assert hp.hparams == {
        "type": "b",
        "note": "hello",
        "units": 16,
        "deep": True,
        "net/lr": 1e-4,
        "rate": 0.0,
    }
    assert hp.to_storage() == {
        "type": "b",
        "units[type=b|c]": 16,
        "deep[type=b|c]": True,
        "net/lr[type=b|c][reversed]": 1e-2,
        "rate[type=b,deep=True]": 0.0,
    }
    assert [p.name for p in hp.parameters.values()] == ["type", "units", "deep", "net/lr", "rate"]


def test_storage_names_of_different_conditions_never_read_alike() -> None:
    hp = HyperParameters()
    hp.Choice("p", ["a|b", "a", "b,q=c"])
    hp.Choice("q", ["c"])
    names = []
    for conditions in (
        [("p", ["a|b"])],
        [("p", ["a", "b"])],
        [("p", ["b,q=c"])],
        [("p", ["b"]), ("q", ["c"])],
    ):
        with hp.conditional_scope(*conditions[0]):
            if len(conditions) == 1:
                hp.Int("n", 1, 2)
            else:
                with hp.conditional_scope(*conditions[1]):
                    hp.Int("n", 1, 2)
        names.append(hp.space[-1].storage_name)
    assert len(set(names)) == 4
    assert names[1] == "n[p=a|b]"


def test_the_chooser_is_asked_once_for_each_active_parameter() -> None:
    asked: list[str] = []

    def chooser(parameter: Parameter) -> Any:
        asked.append(parameter.storage_name)
        return parameter.values()[-1]

    hp = HyperParameters(values={"given": 2}, chooser=chooser)
    assert hp.Choice("type", ["a", "b"]) == "b"
    assert hp.Int("given", 1, 3) == 2
    for _ in range(2):
        assert hp.Int("n", 1, 5) == 5
        assert hp.Int("of_a", 1, 5, parent_name="type", parent_values=["a"]) is None
        assert hp.Int("of_b", 1, 5, parent_name="type", parent_values=["b"]) == 5
    hp.Fixed("k", 1)
    assert asked == ["type", "n", "of_b[type=b]"]
    assert list(hp.parameters) == ["type", "given", "n", "of_b[type=b]"]


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (
            lambda hp: hp.Int("u", 0, 2**80),
            'hp.Int("u"): max_value must be at most 2**53, got 12089',
        ),
        (lambda hp: hp.Int("u", -(2**60), 0), "at most 2**53, got -1152921504606846976. Larger"),
        (lambda hp: hp.Float("u", -1e308, 1e308), "are further apart than the largest float"),
        (lambda hp: hp.Choice("u", [float("nan"), 1.0]), "contain NaN, which equals no value"),
        (lambda hp: hp.Fixed("u", float("nan")), 'hp.Fixed("u"): value is NaN'),
        (lambda hp: hp.Fixed("u", 2**63), "more than 64 bits, which a storage cannot keep"),
        (lambda hp: hp.Choice("u", ["a", "b\udcff"]), "a storage cannot keep 'b\\udcff', because"),
        (lambda hp: hp.Fixed("u", "b\udcff"), "a storage cannot keep 'b\\udcff', because"),
        (lambda hp: hp.Int("b\udcff", 1, 2), "hp.Int: a storage cannot keep 'b\\udcff'"),
        (lambda hp: hp.Int("", 1, 2), "hp.Int(''): the name is empty. Pass a name"),
        (lambda hp: hp.Boolean("  "), "hp.Boolean('  '): the name is empty"),
    ],
)
def test_values_and_names_that_cannot_be_kept(declare, said) -> None:
    with pytest.raises(SpaceError, match=re.escape(said)):
        declare(HyperParameters())


def test_an_empty_name_in_a_scope() -> None:
    hp = HyperParameters()
    with hp.name_scope("net"), pytest.raises(SpaceError, match="'net/'.*: the name is empty"):
        hp.Float("", 0.0, 1.0)


def test_the_largest_whole_numbers_are_told_apart() -> None:
    hp = HyperParameters(values={"u": 2**53 - 1})
    assert hp.Int("u", 0, 2**53) == 2**53 - 1
    stored = hp.to_storage()["u"]
    assert hp.parameters["u"].distribution.to_internal_repr(stored) == 2**53 - 1


def test_a_chooser_that_leaves_the_bounds_is_caught() -> None:
    hp = HyperParameters(chooser=lambda parameter: 6)
    with pytest.raises(SpaceError, match=r'hyperparameter "n": the value 6 is not .* from 1 to 5'):
        hp.Int("n", 1, 5)


def test_given_values_take_the_type_of_their_declaration() -> None:
    hp = HyperParameters(
        values={"n": 3.0, "lr": 1, "c": np.int64(2), "b": np.True_, "s": np.str_("x")}
    )
    hp.Int("n", 1, 5)
    hp.Float("lr", 0, 1)
    hp.Choice("c", [1, 2])
    hp.Boolean("b")
    hp.Choice("s", ["x", "y"])
    assert [type(value) for value in hp.hparams.values()] == [int, float, int, bool, str]
    assert hp.hparams == {"n": 3, "lr": 1.0, "c": 2, "b": True, "s": "x"}
    assert hp.values == hp.hparams


def test_a_given_value_is_readable_before_its_declaration() -> None:
    hp = HyperParameters(values={"n": 3})
    assert hp.get("n") == hp["n"] == 3
    assert "n" in hp
    assert hp.hparams == {}
    assert hp.unused == ["n"]


def test_unused_lists_what_no_build_declared() -> None:
    hp = HyperParameters(values={"type": "a", "of_b": 2, "typo": 1})
    hp.Choice("type", ["a", "b"])
    assert hp.Int("of_b", 1, 5, parent_name="type", parent_values=["b"]) is None
    assert hp.unused == ["typo"]  # of_b is known, it has no say here
    assert "of_b" not in hp
    assert hp.hparams == {"type": "a"}


def test_a_given_value_waits_for_the_condition_that_holds() -> None:
    hp = HyperParameters(values={"type": "b", "units": 32})
    hp.Choice("type", ["a", "b"])
    assert hp.Int("units", 1, 4, parent_name="type", parent_values=["a"]) is None
    assert hp.Int("units", 16, 64, parent_name="type", parent_values=["b"]) == 32
    assert list(hp.parameters) == ["type", "units[type=b]"]
    by_hand = HyperParameters()
    by_hand.values |= {"type": "b", "units": 32}
    by_hand.Choice("type", ["a", "b"])
    assert by_hand.Int("units", 1, 4, parent_name="type", parent_values=["a"]) is None
    assert "units" not in by_hand
    assert by_hand.Int("units", 16, 64, parent_name="type", parent_values=["b"]) == 32


def test_a_default_off_the_grid_is_used_and_cannot_be_stored() -> None:
    hp = HyperParameters()
    assert hp.Int("n", 32, 512, step=32, default=100) == 100  # as in KerasTuner
    assert HyperParameters(values=hp.hparams).Int("n", 32, 512, step=32, default=100) == 100
    with pytest.raises(SpaceError, match=r'"n": the value 100 is not .* in steps of 32'):
        hp.to_storage()


def test_values_written_by_hand_are_used() -> None:
    hp = HyperParameters()
    hp.values["n"] = 4
    assert hp.Int("n", 1, 5) == 4
    hp.values["n"] = 2
    assert hp.Int("n", 1, 5) == 2
    assert hp.to_storage() == {"n": 2}
    hp.values["n"] = 9
    with pytest.raises(SpaceError, match=r'"n": the value 9 is not'):
        hp.to_storage()


def test_one_name_under_two_conditions_that_hold_has_one_value() -> None:
    hp = HyperParameters(chooser=lambda parameter: parameter.values()[-1])
    hp.Choice("type", ["a", "b"])
    assert hp.Int("n", 1, 5) == 5
    assert hp.Int("n", 1, 9, parent_name="type", parent_values=["b"]) == 5
    assert list(hp.to_storage()) == ["type", "n"]
    with pytest.raises(
        SpaceError, match=r'hp.Int\("n"\): .* must contain 5, the value of .* Rename'
    ):
        hp.Int("n", 7, 9, parent_name="type", parent_values=["a", "b"])


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (
            lambda hp: hp.Float("lr", 0.1, 0.01),
            'hp.Float("lr"): min_value 0.1 is greater than the max_value 0.01. Swap',
        ),
        (lambda hp: hp.Int("n", 5, 1), "min_value 5 is greater than the max_value 1. Swap them"),
        (
            lambda hp: hp.Float("lr", 0, 1, sampling="log"),
            "sampling='log' does not support negative values or 0, got min_value 0.0. Raise it",
        ),
        (lambda hp: hp.Float("x", 0, 1, step=0), "step must be above 0, got 0.0. Pass"),
        (lambda hp: hp.Int("x", 0, 4, step=-1), "step must be above 0, got -1. Pass"),
        (lambda hp: hp.Int("x", 1, 4, step=1, sampling="log"), "expected step > 1"),
        (lambda hp: hp.Int("n", True, 5), "min_value must be an int, got True"),
        (lambda hp: hp.Int("n", 1, "5"), "max_value must be an int, got '5'"),
        (lambda hp: hp.Int("n", 1, float("inf")), "max_value must be an int, got inf"),
        (lambda hp: hp.Float("x", 0, float("inf")), "max_value must be a finite number, got inf"),
        (lambda hp: hp.Float("x", float("nan"), 1), "min_value must be a finite number, got nan"),
        (lambda hp: hp.Float("x", None, 1), "min_value must be a finite number, got None"),
        (lambda hp: hp.Float("x", 0, 1, sampling="cubic"), "must be one of 'linear', 'log' and"),
        (lambda hp: hp.Choice("c", []), "`values` must be provided, got none. Pass"),
        (
            lambda hp: hp.Choice("c", [1, (2, 3)]),
            "hold int, tuple; a Choice can contain only",
        ),
        (lambda hp: hp.Choice("c", {"a", "b"}), "the same choices, got {'"),
        (lambda hp: hp.Choice("c", 3), "got 3. Pass a list"),
        (lambda hp: hp.Choice("c", ["a"], default="b"), "should be one of ['a'], got 'b'"),
        (lambda hp: hp.Choice("c", [1, 2], default=True), "should be one of [1, 2], got True"),
        (
            lambda hp: hp.Choice("c", [None], default="x"),
            "should be one of [None], got 'x'",
        ),
        (lambda hp: hp.Boolean("b", default="yes"), "must be a Python boolean, got 'yes'"),
        (
            lambda hp: hp.Fixed("k", [1, 2]),
            "must be an int, float, str or bool, got [1, 2] of type list",
        ),
        (lambda hp: under(hp, "p", [1]), 'hp.conditional_scope("p"): a hyperparameter of this'),
        (lambda hp: under(hp, "type", []), "a value of the parent or a list of them, got []"),
        (lambda hp: under(hp, "type", None), "a value of the parent or a list of them, got None"),
        (lambda hp: under(hp, "type", ["a"], name="type"), "the same name as its own parent"),
        (
            lambda hp: hp.Choice("type", ["a", "c"]),
            "same condition, with Choice(['a', 'b']) first and",
        ),
        (
            lambda hp: hp.Fixed("type", "a"),
            "declared twice under the same condition, with",
        ),
        (
            lambda hp: hp.get("nothing"),
            'hp.get("nothing"): this hyperparameter does not exist. Active ones: type',
        ),
    ],
)
def test_errors_name_the_argument_the_value_and_the_next_step(declare: Any, said: str) -> None:
    hp = HyperParameters()
    hp.Choice("type", ["a", "b"])
    with pytest.raises(SpaceError, match=re.escape(said)):
        declare(hp)
    assert hp.hparams == {"type": "a"}


def under(hp: HyperParameters, parent: str, values: Any, name: str = "n") -> Any:
    return hp.Int(name, 1, 2, parent_name=parent, parent_values=values)


def test_errors_of_given_values() -> None:
    with pytest.raises(
        SpaceError, match=r'hyperparameter "lr": the value 1.0 is not a number from'
    ):
        HyperParameters(values={"lr": 1.0}).Float("lr", 1e-4, 1e-2)
    with pytest.raises(SpaceError, match=r'"act": the value .gelu. is not one of .relu., .elu.'):
        HyperParameters(values={"act": "gelu"}).Choice("act", ["relu", "elu"])
    with pytest.raises(SpaceError, match=r'hp.Fixed\("k"\): got the value 2, but 1 is declared'):
        HyperParameters(values={"k": 2}).Fixed("k", 1)
    for value in (np.zeros(2), [1], None):
        with pytest.raises(SpaceError, match=r'"c": the value .* is not one of 1, 2'):
            HyperParameters(values={"c": value}).Choice("c", [1, 2])
    assert HyperParameters(values={"k": 1}).Fixed("k", 1) == 1


def test_get_of_what_is_inactive() -> None:
    hp = HyperParameters()
    hp.Choice("type", ["a", "b"])
    hp.Int("n", 1, 2, parent_name="type", parent_values=["b"])
    with pytest.raises(SpaceError, match=r'hp.get\("n"\): it is currently inactive') as caught:
        hp.get("n")
    assert isinstance(caught.value, ValueError)
    with pytest.raises(SpaceError, match="this hyperparameter does not exist") as caught:
        hp.get("m")
    assert isinstance(caught.value, KeyError)
    assert not str(caught.value).startswith(("'", '"'))  # a KeyError's own text is a repr
    assert hp.is_active("n") is False
    assert hp.is_active("m") is False
    assert hp.is_active("type") is True


def test_a_parent_declared_under_another_condition_can_be_named() -> None:
    # KerasTuner finds a parent only under the very conditions of the scope; ours is not so strict.
    hp = HyperParameters()
    hp.Choice("type", ["a", "b"])
    hp.Boolean("deep", default=True)
    with hp.conditional_scope("type", ["a"]):
        assert hp.Int("n", 1, 3, parent_name="deep", parent_values=[True]) == 1


def test_scopes_close_when_the_build_raises() -> None:
    hp = HyperParameters()
    hp.Boolean("flag")
    with pytest.raises(ZeroDivisionError, match="division"), hp.name_scope("s"):
        _ = 1 / 0
    with pytest.raises(ZeroDivisionError, match="division"), hp.conditional_scope("flag", [True]):
        _ = 1 / 0
    assert hp.Int("n", 1, 2) == 1
    assert hp.space[-1].storage_name == "n"


def test_numpy_bounds_and_choices() -> None:
    hp = HyperParameters()
    low, high, step, half = np.int32(1), np.int64(9), np.uint8(2), np.float32(0.5)
    numpy_hp: Any = hp  # the annotations say int and float
    numpy_hp.Int("n", low, high, step=step)
    numpy_hp.Float("x", half, np.float64(1), default=np.float64(0.75))
    hp.Choice("c", np.array([1, 2, 3]))
    hp.Choice("d", np.linspace(0, 1, 3))
    hp.Fixed("k", np.float64(2))
    assert [type(value) for value in hp.hparams.values()] == [int, float, int, float, float]
    hp.Int("n", 1, 9, step=2)  # the same bounds


def test_equal_choices_count_once() -> None:
    hp = HyperParameters()
    hp.Choice("c", [1, 1, 2])
    assert hp.parameters["c"].values() == [1, 2]


def test_a_copy_stands_alone() -> None:
    hp = HyperParameters(values={"n": 2})
    hp.Int("n", 1, 5)
    copy = hp.copy()
    assert (copy.hparams, copy.parameters, copy.values) == (hp.hparams, hp.parameters, hp.values)
    copy.Int("m", 1, 5)
    copy.values["n"] = 3
    assert hp.hparams == {"n": 2}
    assert copy.Int("n", 1, 5) == 3


def test_from_config_says_what_it_cannot_read() -> None:
    with pytest.raises(SpaceError, match="Choice, Boolean or Fixed, got 'Real'"):
        HyperParameters.from_config({"space": [{"class_name": "Real", "config": {}}], "values": {}})


def test_space_shows_what_keras_tuner_users_read() -> None:
    hp = HyperParameters()
    hp.Choice("type", ["a", "b"])
    hp.Int("n", 1, 9, step=4, parent_name="type", parent_values=["b"])
    hp.Fixed("k", 3)
    parent, child, fixed = hp.space
    assert (parent.kind, parent.choices, parent.ordered) == ("Choice", ("a", "b"), False)
    assert (child.min_value, child.max_value, child.step, child.sampling) == (1, 9, 4, "linear")
    assert [(c.name, c.values) for c in child.conditions] == [("type", ("b",))]
    assert list(child.values) == [1, 5, 9]
    assert (fixed.value, fixed.values) == (3, (3,))
    assert not hp.is_active(child)


def test_the_search_space_loads_neither_jax_nor_keras() -> None:
    code = (
        "import sys, paceline.search_space; "
        "print({'jax', 'jaxlib', 'keras', 'tensorflow', 'torch', 'ray'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
