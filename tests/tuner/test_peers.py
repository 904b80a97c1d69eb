"""When a search waits for the other workers of its study."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import optuna

from paceline.study.sharing.peers import PeerChanges
from paceline.study.trials import trial_codec
from paceline.tuner.search.peers import PeerWatcher


class Shared:
    """A study with another worker, who trains one trial and is found dead by whoever looks next."""

    shared, waits, trials = True, False, ()

    def __init__(self, looks: int) -> None:
        self.looks, self.left = looks, [7]
        self.peers = self.worker = self
        self.watch = SimpleNamespace(request=None)

    def hear(self) -> None:
        """No other program changes it."""

    def take_renumbered(self) -> dict[int, int]:
        return {}

    def watch_peers(self) -> None:
        pass

    def all_peers_alive(self) -> bool:
        """Those that are gone count for nothing."""
        self.looks -= 1
        return self.looks <= 0

    def sync_workers(self) -> PeerChanges:
        if self.looks > 0:
            return PeerChanges(n_theirs=1)
        adopted, self.left = self.left, []
        return PeerChanges(adopted=adopted)


def test_who_is_found_dead_while_one_waits_leaves_nothing_behind() -> None:
    begun: list[int] = []
    trials: Any = SimpleNamespace(n_theirs=1)
    trials.share = lambda trials_, n_theirs: setattr(trials, "n_theirs", n_theirs)

    class Launcher:
        def adopt(self, number: int) -> int:
            begun.append(number)
            return 3

    notes: list[str] = []
    pauses: list[float] = []
    context: Any = SimpleNamespace(
        study=Shared(looks=3), trials=trials, pruner=None, handoff=None, notes=notes.append
    )
    events: Any = None  # no trial of this search ends
    others = PeerWatcher(context, Launcher(), events, sleep=pauses.append)
    assert others.wait()  # it is not known yet
    assert others.wait()
    assert begun == []
    assert others.wait()  # there is something to do again
    assert begun == [7]
    assert notes == ["trial 7 continues a trial of a lost worker, after epoch 3"]
    assert not others.wait()
    assert len(pauses) == 2


def test_a_renumbered_trial_begins_once_no_other_trains_under_its_number() -> None:
    # Trials 5 and 6 were begun without the storage and are 6 and 7: the job 6 in a slot is the
    # former trial 6, whose reports must not be taken for those of the trial that is 6 now.
    begun: list[int] = []
    in_slots, running = {5, 6}, {5, 6}
    moved = [{5: 6, 6: 7}]

    class Launcher:
        def adopt(self, number: int) -> int:
            begun.append(number)
            return 0

    def leave(number: int) -> bool:
        running.discard(number)
        return True

    study: Any = SimpleNamespace(
        take_renumbered=lambda: moved.pop() if moved else {},
        peers=SimpleNamespace(shared=False, hear=lambda: None),
        watch=SimpleNamespace(request=None),
    )
    context: Any = SimpleNamespace(
        study=study,
        costs=None,
        trials=SimpleNamespace(get=lambda number: number if number in running else None),
        members=SimpleNamespace(in_slot=in_slots.__contains__),
        packs=None,
        pruner=None,
        notes=lambda text: None,
    )
    events: Any = SimpleNamespace(leave=leave)
    watcher = PeerWatcher(context, Launcher(), events)
    watcher.look()
    assert (begun, running) == ([7], set())
    in_slots.clear()  # both were told to stop when they reported
    watcher.look()
    assert begun == [7, 6]
    watcher.look()
    assert begun == [7, 6]


def test_the_pruner_learns_of_trials_that_other_programs_end() -> None:
    theirs = optuna.create_study()
    theirs.add_trial(optuna.trial.create_trial(value=0.4, intermediate_values={1: 0.5, 2: 0.4}))
    ended = trial_codec.from_frozen(theirs.trials[0])
    assert ended is not None
    study: Any = SimpleNamespace(
        take_renumbered=dict,
        peers=SimpleNamespace(shared=False, hear=lambda: PeerChanges(ended=[ended])),
        watch=SimpleNamespace(request=None),
        trials=[],
    )
    learnt: list[Any] = []
    pruner = SimpleNamespace(learn_trial=lambda trial, values: learnt.append((trial.value, values)))
    context: Any = SimpleNamespace(
        study=study,
        trials=SimpleNamespace(running={}, paused={}, share=lambda trials, n_theirs: None),
        objective=SimpleNamespace(name="val_loss"),
        pruner=pruner,
    )
    nobody: Any = None
    PeerWatcher(context, nobody, nobody).look()
    assert learnt == [(0.4, {1: 0.5, 2: 0.4})]
