"""The epochs that executors report to a search, for tests that watch, change or stop a search.

Reports are seen where every executor gives them: at the function that ``Executor.advance`` is
called with. So a test needs nothing of the search's own code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.executor.base import EpochReport, Failed, Report
from paceline.executor.fit import FitExecutor
from paceline.executor.local import LocalExecutor


def observe_reports(
    patch: pytest.MonkeyPatch,
    before: Callable[[EpochReport], EpochReport | None] | None = None,
    after: Callable[[EpochReport], Any] | None = None,
) -> list[EpochReport]:
    """Collects the reports of all executors, of jobs: a trial's, or those of its members.

    Args:
        patch: Ends the observation.
        before: Called before a search is told of an epoch; may return another report instead.
        after: Called once a search has handled an epoch.

    Returns:
        The reports, in the order in which they come; it grows.
    """
    reports: list[EpochReport] = []

    def observe(executor: type[LocalExecutor | FitExecutor]) -> None:
        advance = executor.advance

        def observed(self: Any, report: Report, meanwhile: Any, failed: Failed) -> None:
            def told(one: EpochReport) -> Any:
                reports.append(one)
                changed = None if before is None else before(one)
                answer = report(changed or one)
                if after is not None:
                    after(one)
                return answer

            advance(self, told, meanwhile, failed)

        patch.setattr(executor, "advance", observed)

    observe(LocalExecutor)
    observe(FitExecutor)
    return reports
