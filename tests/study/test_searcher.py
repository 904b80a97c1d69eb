"""A searcher in the sampler's place: it decides, and the study accepts what it decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
import pytest

from paceline.search_space import HyperParameters, Space
from paceline.study.proposer import BuildFailed
from paceline.study.samplers.samplers import Searcher, TrialWeights, strategy_of
from paceline.study.study import Study
from paceline.study.trials.trial import Trial


class Listed(Searcher):
    """Suggests the configurations of a list; None in the list asks to wait."""

    def __init__(self, *suggested: dict[str, Any] | None) -> None:
        self._suggested = list(suggested)
        self.numbers: list[int] = []

    @property
    def max_open(self) -> int | None:
        return 3

    def n_to_come(self, n_left: int | None) -> int | None:
        return len(self._suggested)

    def first_look(self) -> HyperParameters | None:
        return None

    def on_search_begin(self, space: Space, hp: HyperParameters, batch: Any) -> None:
        pass

    def suggest(self, number: int) -> HyperParameters | None:
        self.numbers.append(number)
        values = self._suggested.pop(0)
        return None if values is None else HyperParameters(values)

    def hp_again(self, number: int, hparams: Mapping[str, Any]) -> HyperParameters:
        return HyperParameters(hparams)

    def on_renumbered(self, number: int, now: int) -> None:
        pass

    def on_trial_result(self, number: int, members: Sequence[Mapping[str, float]]) -> None:
        pass

    def on_member_result(self, number: int, value: float | None, fetch: Callable[[], Any]) -> None:
        pass

    def on_trial_error(self, number: int, error: BaseException) -> bool:
        return True

    def on_trial_complete(self, trial: Trial) -> None:
        pass

    def trial_weights(self) -> TrialWeights | None:
        return None


def opened(sampler: Any) -> Study:
    storage = optuna.storages.InMemoryStorage()
    return Study("s", storage=storage, direction="maximize", sampler=sampler)


def build(hp: HyperParameters, proposal: Any) -> int:
    return hp.Int("units", 1, 4)


def test_what_a_searcher_suggests_is_tried_also_a_second_time() -> None:
    searcher = Listed({"units": 2}, {"units": 2}, None, {"units": 3})
    study = opened(searcher)
    assert study.strategy is searcher and study.asker.max_open == 3
    for number in (0, 1):
        proposal, hp, units = study.asker.propose(build)
        assert (study.accept(proposal, hp), units) == (number, 2)
    assert study.asker.propose(build) is None
    assert not study.proposer.exhausted  # the searcher waits for results
    proposal, hp, units = study.asker.propose(build)
    assert (study.accept(proposal, hp), units) == (2, 3)
    assert searcher.numbers == [0, 1, 2, 2]


def test_a_build_that_fails_is_a_trial_of_the_searcher() -> None:
    study = opened(Listed({"units": 2}))

    def failing(hp: HyperParameters, proposal: Any) -> None:
        build(hp, proposal)
        raise ValueError("too large")

    with pytest.raises(BuildFailed, match="ValueError: too large") as caught:
        study.asker.propose(failing)
    assert study.accept(caught.value.proposal, caught.value.hp) == 0
    assert study.trials.by_number(0).hparams == {"units": 2}


def test_bounds_of_a_searcher_may_change_from_build_to_build() -> None:
    study = opened(Listed({"units": 2}, {"units": 9}))
    study.accept(*study.asker.propose(build)[:2])
    proposal, hp, units = study.asker.propose(lambda hp, proposal: hp.Int("units", 1, 9))
    assert (study.accept(proposal, hp), units) == (1, 9)


@pytest.mark.parametrize(("sampler", "ends"), [("random", False), ("tpe", False), ("grid", True)])
def test_the_strategy_of_a_sampler(sampler: str, ends: bool) -> None:
    strategy = strategy_of(sampler)
    assert (strategy.resumable, strategy.ends_by_itself) == (True, ends)
    assert [strategy.n_to_come(n) for n in (None, 0, 7)] == [None, 0, 7]
    assert strategy.hp_again(3, {"units": 2}).values == {"units": 2}
    assert not strategy.on_trial_error(3, ValueError("x"))
    assert strategy.first_look() is None and strategy.trial_weights() is None


def test_the_strategy_of_a_searcher_is_the_searcher() -> None:
    searcher = Listed()
    assert strategy_of(searcher) is searcher
    assert (
        searcher.resumable,
        searcher.ends_by_itself,
        searcher.limits_failures,
        searcher.scores_infinity,
    ) == (
        False,
        True,
        True,
        True,
    )
