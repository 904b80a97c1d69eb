"""What sharing a program costs and saves on an accelerator."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.executor.sharing.costs import sharing_pays

SHORT = {"flops": 0.0, "elements": 0.0, "steps": 100_000, "structures": 0.0, "trials": 8}


@pytest.mark.parametrize(
    ("more", "pays"),
    [
        ({}, True),  # it costs nothing, and fills slots
        ({"flops": 1e9}, True),  # 25 us, where launching takes 50 us
        ({"flops": 3e9}, False),
        ({"elements": 2e7}, True),  # 20 us
        ({"elements": 6e7}, False),
        ({"flops": 3e9, "structures": 0.75, "steps": 10_000}, True),  # the compiles pay for it
        ({"flops": 3e9, "structures": 0.75}, False),  # of a long training they do not
        ({"trials": 1}, False),  # nobody to share with
    ],
)
def test_sharing_pays(more: dict[str, Any], pays: bool) -> None:
    assert sharing_pays(**(SHORT | more)) is pays
