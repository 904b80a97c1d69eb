"""Programs that the planner makes for a group."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

import toys
from paceline.data.arrays import prepare
from paceline.executor.base import Job, PackOptions, SearchData
from paceline.executor.local import LocalExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import random_state_kept
from paceline.executor.training.planner import Candidate, effort_of
from paceline.pack.plan import vectorized
from paceline.program.compile import CompileEffort
from paceline.search_space import HyperParameters

X, Y = toys.data()
MANY = 10**9  # trials


@pytest.fixture
def local() -> Iterator[LocalExecutor]:
    """An executor with one trial."""
    build = ModelBuilder(toys.dense)

    def rebuild() -> object:
        return build(HyperParameters(), 7)

    found = LocalExecutor(SearchData(prepare(X, Y)), PackOptions(slots=2, plan="looped"))
    with random_state_kept():
        found.submit(Job(0, 7, 1, 16, rebuild(), rebuild))
        yield found
    found.close()


def test_what_was_compiled_is_taken_over_from_a_program_of_the_same_plan_only(
    local: LocalExecutor,
) -> None:
    (group,), planner = local._grouper.groups, local._planner
    planner.compile(group, 2, 2)
    mapped = group.program
    assert mapped is not None and mapped.plan == "looped"
    again = planner._make(group, Candidate("looped", 2), 2, 2, mapped)
    other = planner._make(group, Candidate("vectorized", 2), 2, 2, mapped)
    assert again.roles() == mapped.roles()
    assert other.roles() != mapped.roles()


def test_a_program_that_gets_more_inputs_is_compiled_as_well_as_before(
    local: LocalExecutor,
) -> None:
    """Workers of a cluster have seen other trials by then, and must not differ."""
    (group,), planner = local._grouper.groups, local._planner
    planner.compile(group, 2, 2)
    assert group.program is not None and group.program.effort > CompileEffort.WELL
    assert effort_of(group, 2, MANY) is CompileEffort.WELL
    before = group.program.effort
    planner.compile(group, 2, MANY)
    assert group.program.effort is before


def test_programs_with_other_results_have_other_keys(
    local: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop over full batches has logs where no smaller batch follows in every epoch."""
    (group,) = local._grouper.groups
    keys: list[list[str]] = []

    def compiled(*_: Any, key: str, **__: Any) -> Future[Any]:
        keys[-1].append(key)
        return Future()

    monkeypatch.setattr(vectorized, "compile_in_background", compiled)
    assert group.work.rest
    for steps in (None, group.work.steps):
        keys.append([])
        work = replace(group.work, chunk_bytes=X[:16].nbytes + Y[:16].nbytes, steps_per_epoch=steps)
        assert work.chunk == 16 and work.ends_small == (steps is None)
        vectorized.VectorizedProgram(group.roles, group.state, work, 2, CompileEffort.WELL)
    assert keys[0][0] != keys[1][0]
