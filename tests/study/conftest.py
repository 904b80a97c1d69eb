"""Studies with a few trials in them, told as a tuner would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.study.study import Study
from study.builds import build, value_of


@pytest.fixture
def run_trials() -> Callable[..., list[dict[str, Any]]]:
    """A function that runs trials of a study one by one and returns their hparams."""

    def run(
        study: Study, n: int, build: Callable[..., Any] = build, epochs: int = 2, open_: int = 1
    ) -> list[dict[str, Any]]:
        study.trials.set_direction("maximize")
        running: list[int] = []
        seen = []
        for _ in range(n):
            proposal = study.asker.propose(build)
            if proposal is None:
                break
            proposal, hp, hparams = proposal
            study.persist({"objective": "val_accuracy"})
            running.append(study.accept(proposal, hp))
            seen.append(hparams)
            if len(running) == open_:
                end(study, running.pop(0), epochs)
        for number in running:
            end(study, number, epochs)
        study.writer.flush()
        return seen

    def end(study: Study, number: int, epochs: int) -> None:
        value = value_of(study.trials.by_number(number).hparams)
        for epoch in range(1, epochs + 1):
            at = value - 1 / epoch
            study.updates.report(number, epoch, {"loss": 1 / epoch, "val_accuracy": at}, at)
        study.updates.finish(number, "complete", attrs={"seconds": 0.5, "plan": "vectorized"})

    return run
