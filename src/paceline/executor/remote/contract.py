"""Makes the jobs of ``PackExecutorContract`` on other machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.executor.base import Job, JobSpec, SearchData
from paceline.executor.testing import make_job


@dataclass(frozen=True)
class ContractRecipe:
    """Makes the contract's jobs on another machine."""

    data: SearchData
    batch_size: int = 16  # examples per step
    precision: str | None = None
    code_digest: str | None = None
    numbers: Mapping[str, Any] | None = None

    def apart(self) -> tuple[dict[str, Any], ContractRecipe]:
        """Nothing of it is the user's."""
        return {}, self

    def writing_below(self, here: Callable[[int, Path, str, bool], Path]) -> ContractRecipe:
        """Its jobs have no callbacks."""
        return self

    def together(self, code: dict[str, Any]) -> ContractRecipe:
        """The inverse of ``apart``."""
        return self

    def job(self, spec: JobSpec) -> Job:
        """The job of a spec."""
        return make_job(spec, self.batch_size)
