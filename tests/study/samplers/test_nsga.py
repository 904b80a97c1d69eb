"""NSGA-II and NSGA-III by name: their generations, also after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marks import slow_where
from paceline.errors import SamplerError
from paceline.study.samplers.nsga import parents_noted, read_nsga
from paceline.study.study import Study

SAMPLERS = ["nsga2:5", "nsga3:5", "tpe"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("nsga2", ("nsga2", 50)),
        ("nsga3:12", ("nsga3", 12)),
        ("nsga4", None),
        ("nsga2:", None),
        ("nsga2:-3", None),
    ],
)
def test_names(text: str, found: Any) -> None:
    assert read_nsga(text) == found


def test_a_generation_has_two_trials_at_least() -> None:
    with pytest.raises(SamplerError, match="at least 2 trials, got 'nsga3:0'"):
        read_nsga("nsga3:0")


@pytest.mark.parametrize(
    ("attrs", "found"),
    [
        ({"NSGAIISampler:parent:1": [0, 2]}, {"NSGAIISampler:parent:1": [10, 12]}),
        ({"nsga2:population:e3b0": [0, [2, 1]]}, {"nsga2:population:e3b0": [0, [12, 11]]}),
        ({"x:parent:1": [0, 7]}, {}),  # a trial that is not there
        ({"x:parent:1": "0", "y:population:1": [0, 3], "z": [0]}, {}),  # nothing of the kind
    ],
)
def test_parents_are_numbered_anew(attrs: dict[str, Any], found: dict[str, Any]) -> None:
    assert parents_noted(attrs, {0: 10, 1: 11, 2: 12}) == found


def run(study: Study, n: int) -> None:
    """Trials whose two losses want different things."""
    while len(study.trials) < n:

        def build(hp: Any, proposal: Any) -> tuple[float, float]:
            return hp.Float("x", 0.0, 1.0), hp.Float("y", 0.0, 1.0)

        proposal = study.asker.propose(build)
        assert proposal is not None
        proposal, hp, (x, y) = proposal
        number = study.accept(proposal, hp)
        losses = [x * x + y, (1 - x) ** 2 + y]
        study.updates.report(number, 1, {"a": losses[0]}, losses[0])
        study.updates.finish(number, "complete", values=losses, attrs={"epochs": 1})


def opened(name: str, sampler: str, state: Any = None) -> Study:
    directions = ("minimize", "minimize")
    return Study(name, direction=directions, sampler=sampler, seed=1, n_trials=40, resumed=state)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("at", slow_where([3, 13, 20], lambda at: at != 13))
def test_a_study_that_goes_on_proposes_what_it_would_have(sampler: str, at: int) -> None:
    whole = opened("whole", sampler)
    whole.persist({})
    run(whole, 40)
    part = opened("part", sampler)
    part.persist({})
    run(part, at)
    state = part.state()
    run(part, at + 4)  # these come again
    part.close()
    again = opened("part", sampler, state)
    again.persist(again.metadata.meta)
    assert again.resumed
    again.updates.show_ends()
    for number in range(at, at + 4):
        again.trials.remove(number)
    run(again, 40)
    assert [t.hparams for t in again.trials] == [t.hparams for t in whole.trials]
    assert [t.values for t in again.trials] == [t.values for t in whole.trials]
    again.close()
    whole.close()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_front_comes_nearer_than_by_chance(sampler: str) -> None:
    """y is bad for both losses, so whoever learns chooses it low: random has a mean of 0.5."""
    study = opened("s", sampler)
    study.persist({})
    run(study, 40)
    late = [trial.hparams["y"] for trial in study.trials][25:]
    assert sum(late) / len(late) < 0.4
    study.close()
    assert Path("runs/s/journal.log").is_file()
