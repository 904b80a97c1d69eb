import itertools
import random

from paceline.study.samplers.families import StructuralParameters


def learnt(trials, program, continuous=("lr",)) -> StructuralParameters:
    structure = StructuralParameters()
    for values in trials:
        structure.learn(
            program(values), values, [name for name in values if name not in continuous]
        )
    return structure


def some(n, seed=0):
    rng = random.Random(seed)
    return [
        {
            "momentum": rng.choice([0.8, 0.9]),
            "units": rng.choice([16, 32, 64]),
            "batch": rng.choice([32, 64]),
            "lr": rng.random(),
            "patience": rng.randrange(100),
        }
        for _ in range(n)
    ]


def by_units_and_batch(values):
    return f"{values['units']}-{values['batch']}"


def test_nothing_is_structural_while_all_trials_share_a_program():
    structure = learnt(some(20), lambda values: "one")
    assert structure.names == () and structure.n_programs == 1
    assert structure.of(some(1)[0]) == {}


def test_what_tells_programs_apart_is_structural_and_nothing_else():
    for seed in range(20):
        structure = learnt(some(40, seed), by_units_and_batch)
        assert set(structure.names) == {"units", "batch"}
        assert structure.n_programs == 6


def test_a_continuous_number_is_not_taken_for_structural():
    trials = [{"lr": number / 10} for number in range(5)]
    assert learnt(trials, lambda values: str(values["lr"])).names == ()


def test_a_wrong_guess_does_not_last():
    structure = StructuralParameters()
    structure.learn("a", {"momentum": 0.8, "units": 16}, ["momentum", "units"])
    structure.learn("b", {"momentum": 0.9, "units": 32}, ["momentum", "units"])
    assert structure.names == ("momentum",)  # both tell the two apart: the first is guessed
    structure.learn("b", {"momentum": 0.8, "units": 32}, ["momentum", "units"])
    assert structure.names == ("units",)


def test_a_parameter_that_matters_for_some_values_only_is_left_out():
    # A dropout of rate 0 is none: another program, of which "units" knows nothing.
    trials = [
        {"dropout": dropout, "units": units}
        for dropout, units in itertools.product([0.0, 0.1, 0.2], [8, 16])
    ]
    structure = learnt(trials, lambda values: f"{values['units']}-{values['dropout'] > 0}")
    assert structure.names == ("units",)


def test_a_parameter_that_is_not_there_is_no_part_of_a_structure():
    trials = [{"layers": 1}, {"layers": 2, "second": 8}, {"layers": 2, "second": 16}]
    structure = learnt(trials, str)
    assert structure.of(trials[0]) == {name: 1 for name in structure.names if name == "layers"}
    assert structure.of(trials[2])["second"] == 16
