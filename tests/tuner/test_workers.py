"""Several processes search one study, and one of them is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import FrozenTrial

from paceline.study.sharing.claims import stands
from paceline.study.sharing.worker import Worker
from paceline.study.storage.storage import StudyStorage
from paceline.study.study import Study
from paceline.study.trials.trial import INTERRUPTED
from paceline.study.trials.trial_codec import owner_of
from study.sharing.party import must_begin

SCRIPT = Path(__file__).parents[1] / "workers.py"
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(child_environment: dict[str, str]):
    """Starts workers, whose hearts beat fast; none outlives the test."""
    children: list[subprocess.Popen[str]] = []
    environment = {
        **child_environment,
        "PACELINE_HEARTBEAT_SECONDS": "0.3",
        "PYTHONFAULTHANDLER": "1",
    }

    def begin(
        mode: str,
        storage: str | None,
        *more: object,
        ahead: float = 0.0,
        starts: str = "[]",
        **rules: float,
    ) -> subprocess.Popen[str]:
        children.append(
            subprocess.Popen(
                [sys.executable, SCRIPT, mode, storage or "", *map(str, more)],
                env={
                    **environment,
                    "AHEAD": str(ahead),
                    "STARTS": starts,
                    "RULES": json.dumps(rules),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return children[-1]

    yield begin
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGABRT)  # it says where it stood, should the test have failed
        sys.stdout.write(child.communicate()[1])


def stored(storage: str | None) -> list[FrozenTrial]:
    found = StudyStorage.of(storage, "s", Path("runs")).load("s")
    return [] if found is None else found.trials


def wait_for(condition: Callable[[], Any], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it does not come about"
        time.sleep(0.05)


def ended(child: subprocess.Popen[str]) -> dict[str, Any]:
    out, said = child.communicate(timeout=240)
    assert child.returncode == 0, said
    return json.loads(out.splitlines()[-1])


def is_whole(trials: list[FrozenTrial], n: int, epochs: int) -> None:
    """A study of ``n`` trials, all different, each trained once from its first epoch on."""
    standing = [trial for trial in trials if stands(trial)]
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert [trial.state.name for trial in standing] == ["COMPLETE"] * n
    assert len({json.dumps(trial.user_attrs["hparams"]) for trial in standing}) == n
    assert all(list(trial.intermediate_values) == list(range(1, epochs + 1)) for trial in standing)
    # Those that were interrupted were all trained by somebody else.
    left = [trial for trial in trials if trial.user_attrs.get("reason") == INTERRUPTED]
    interrupted = {json.dumps(trial.user_attrs["hparams"]) for trial in left}
    assert interrupted <= {json.dumps(trial.user_attrs["hparams"]) for trial in standing}


@pytest.mark.parametrize(
    "kind",
    ["journal", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("sqlite", "postgresql"))],
)
def test_three_workers_share_a_study_and_one_is_killed(
    kind: str, start: Start, request: pytest.FixtureRequest
) -> None:
    n = 40
    storage = {"journal": None, "sqlite": "sqlite:///s.db"}.get(kind)
    if kind == "postgresql":
        storage = request.getfixturevalue("postgresql").database()
    children = [start("study", storage, n) for _ in range(3)]
    wait_for(lambda: len({owner_of(trial) for trial in stored(storage)}) == 3)
    Path("go").touch()
    wait_for(lambda: any(trial.intermediate_values for trial in stored(storage)))
    children[0].kill()  # in the midst of trials: it always trains two
    children[0].wait()
    states = [ended(child)["states"] for child in children[1:]]
    assert [found.count("complete") for found in states] == [n, n], states
    is_whole(stored(storage), n, 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["journal", "postgresql"])
def test_workers_whose_clocks_are_an_hour_apart(
    kind: str, start: Start, request: pytest.FixtureRequest
) -> None:
    """As on machines that nobody synchronises; one of them is killed."""
    n = 40
    storage = None if kind == "journal" else request.getfixturevalue("postgresql").database()
    children = [start("study", storage, n, ahead=hours * 3600.0) for hours in (1, 0, -1)]
    wait_for(lambda: len({owner_of(trial) for trial in stored(storage)}) == 3)
    Path("go").touch()
    wait_for(lambda: any(trial.intermediate_values for trial in stored(storage)))
    children[0].kill()
    children[0].wait()
    states = [ended(child)["states"] for child in children[1:]]
    assert [found.count("complete") for found in states] == [n, n], states
    is_whole(stored(storage), n, 3)
    began = [trial.datetime_start.timestamp() for trial in stored(storage) if trial.datetime_start]
    assert max(began) - min(began) > 1800, "no clock was another"


@pytest.mark.slow
def test_two_searches_share_a_study_and_one_is_killed(start: Start) -> None:
    """Whole searches: packs, models, and the best of them, whoever trained it."""
    n = 8
    first = start("search", None, n, 3.0)
    wait_for(lambda: any(trial.intermediate_values for trial in stored(None)))
    second = start("search", None, n, 0.0)
    wait_for(lambda: '"shared"' in Path("runs/s/journal.log").read_text())
    first.kill()
    first.wait()
    found = ended(second)
    trials = stored(None)
    is_whole(trials, n, 3)
    assert found["states"].count("complete") == n
    best = max(trial.value for trial in trials if trial.value is not None)
    assert found["accuracy"] == pytest.approx(best, abs=1e-5)


@pytest.mark.slow
def test_two_searches_are_given_the_same_initial_configurations(start: Start) -> None:
    """Each is trained once, whoever is first, and is known to be one."""
    given = [{"lr": 0.01 * i, "dropout": 0.2} for i in range(1, 5)]
    children = [start("search", None, 8, 0.5, starts=json.dumps(given)) for _ in range(2)]
    for child in children:
        ended(child)
    trials = stored(None)
    is_whole(trials, 8, 3)
    owners = {owner_of(trial) for trial in trials}
    assert len(owners) == 2, "they did not share the study"
    begun = [t.user_attrs["hparams"] for t in trials if stands(t) and t.user_attrs.get("enqueued")]
    by_rate = sorted(begun, key=lambda hparams: hparams["lr"])
    assert [hparams["lr"] for hparams in by_rate] == [hparams["lr"] for hparams in given]


def tell_trials(values: list[float]) -> list[int]:
    """Joins the study as another process that tells of trials of these values; their numbers."""
    worker = Worker(Path("runs/s/workers"), lambda text: None, every=0.3)
    study = Study("s", direction="maximize", n_trials=500, worker=worker)
    study.persist(study.metadata.meta)
    numbers: list[int] = []
    for value in values:
        study.sync_workers()
        number = must_begin(study, rates)
        study.updates.report(number, 1, {"val_accuracy": value}, value)
        study.updates.finish(number, "complete", attrs={"epochs": 1, "best_epoch": 1})
        numbers.append(number)
    study.close()
    worker.leave()
    return numbers


def rates(hp: Any, proposal: Any) -> None:
    """The hyperparameters of ``toys.dense``."""
    hp.Float("dropout", 0.1, 0.5)
    hp.Float("lr", 1e-3, 1e-1, sampling="log")


@pytest.mark.slow
def test_a_search_ends_when_another_process_has_reached_the_target(start: Start) -> None:
    search = start("search", None, 500, 0.2, target_value=2.0)  # which no accuracy reaches
    wait_for(lambda: any(trial.intermediate_values for trial in stored(None)))
    (number,) = tell_trials([2.5])
    ended_by = ended(search)["ended"]
    text = f"target 2.0000 reached: trial {number} has val_accuracy 2.5000"
    assert ended_by == {"by": "target_value", "text": text}
    assert len(stored(None)) < 500


@pytest.mark.slow
def test_a_search_ends_where_the_trials_of_another_process_do_not_gain(start: Start) -> None:
    search = start("search", None, 500, 0.2, patience_trials=9)
    wait_for(lambda: any(trial.intermediate_values for trial in stored(None)))
    best, *others = tell_trials([2.5, *[0.0] * 8])
    ended_by = ended(search)["ended"]
    text = f"no better trial in 9 trials up to trial {{}}: the best is trial {best}"
    trials = [trial for trial in stored(None) if trial.number > best and stands(trial)]
    assert ended_by == {"by": "patience_trials", "text": text.format(trials[8].number)}
    # Eight of the nine were told here, unless the search has claimed more numbers among them.
    assert set(others) & {trial.number for trial in trials[:9]}
