"""Searches on several machines: trials are what they are on one, whatever becomes of machines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clusters import InProcessCluster, build_families, build_grid, records, searched, trials


@pytest.mark.parametrize("n", [1, 3])
def test_a_random_search_has_the_histories_of_one_machine(n: int) -> None:
    local, found = searched("local", "local"), searched(InProcessCluster(n), "cluster")
    assert records(found) == records(local)
    for ours, theirs in zip(
        found.best_model().get_weights(), local.best_model().get_weights(), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    workers = {trial.worker for trial in trials(found)}
    assert workers == {f"host-{at}" for at in range(n)}
    assert "worker" in found.results() and "worker" not in local.results()


@pytest.mark.parametrize("make", [build_families, build_grid])
def test_families_and_grids_have_the_histories_of_one_machine(make: Any) -> None:
    sampler = "grid" if make is build_grid else "random"
    local = searched("local", "local", make, sampler=sampler)
    found = searched(InProcessCluster(2), "cluster", make, sampler=sampler)
    assert records(found) == records(local)
