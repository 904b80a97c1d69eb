"""Which cases of a parametrized test are for ``make test-slow``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def slow_where(cases: Iterable[Any], is_slow: Callable[[Any], bool]) -> list[Any]:
    """The cases, values or tuples of them: `make test` has seven minutes on two cores."""

    def marked(case: Any) -> Any:
        values = case if isinstance(case, tuple) else (case,)
        return pytest.param(*values, marks=pytest.mark.slow)

    return [marked(case) if is_slow(case) else case for case in cases]
