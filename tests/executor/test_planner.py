"""Programs that the planner makes for a group."""

from __future__ import annotations

import toys
from paceline.data.arrays import prepare
from paceline.executor.base import Job, PackOptions, SearchData
from paceline.executor.local import LocalExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.plan_choice import Candidate
from paceline.executor.process import random_state_kept
from paceline.search_space import HyperParameters

X, Y = toys.data()


def test_what_was_compiled_is_taken_over_from_a_program_of_the_same_plan_only() -> None:
    build = ModelBuilder(toys.dense)

    def rebuild() -> object:
        return build(HyperParameters(), 7)

    local = LocalExecutor(SearchData(prepare(X, Y)), PackOptions(slots=2, plan="mapped"))
    try:
        with random_state_kept():
            local.submit(Job(0, 7, 1, 16, rebuild(), rebuild))
            (group,) = local._grouper.groups
            planner = local._planner
            planner.compile(group, 2, 2)
            mapped = group.program
            assert mapped is not None and mapped.plan == "mapped"
            again = planner._make(group, Candidate("mapped", 2), 2, 2, mapped)
            stacked = planner._make(group, Candidate("stacked", 2), 2, 2, mapped)
        assert again.roles() == mapped.roles()
        assert stacked.roles() != mapped.roles()
    finally:
        local.close()
