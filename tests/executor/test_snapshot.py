"""Trials that are paused, or put back from a snapshot, go on as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import keras
import ml_dtypes
import msgspec
import numpy as np
import pytest

import toys
from executor.fakes import group, numbers, read, slots_of, stored
from paceline.data.arrays import prepare
from paceline.data.inputs import TrialInputs
from paceline.executor.base import Answer, EpochReport, Job, PackOptions, SearchData
from paceline.executor.local import LocalExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import random_state_kept
from paceline.executor.state.paused import PausedStates
from paceline.executor.state.snapshot import Arrays, state_like
from paceline.pack import slot_rows
from paceline.pack.pack import SlotTrial
from paceline.program.trace import State
from paceline.search_space import HyperParameters

RNG = np.random.default_rng(0)
GROUP = group()

# -- paused trials ---------------------------------------------------------------------------------


def trial(number: int) -> SlotTrial:
    arrays = [
        RNG.standard_normal((3, 4)).astype(np.float32),
        np.asarray(RNG.standard_normal(5), ml_dtypes.bfloat16),
        np.int32(number) * np.ones((), np.int32),
    ]
    return SlotTrial(number, number, 9, State(arrays, [], arrays[:1], arrays[2:]), ())


def same(one: State, two: State) -> None:
    for a, b in zip(one.lists(), two.lists(), strict=True):
        for x, y in zip(a, b, strict=True):
            assert x.dtype == y.dtype and x.shape == y.shape
            np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.mark.parametrize("limit", [0, 200, 10**9])
def test_states_come_back_as_they_were(limit: int) -> None:
    paused = PausedStates(limit)
    given = [trial(number) for number in range(5)]
    states = [one.state for one in given]
    for one in given:
        paused.put(one, GROUP)
        assert one.state is None
    assert len(paused) == 5
    assert (paused.on_disk > 0) == (limit < 1000)
    assert limit == 0 or paused.on_disk < 5
    for number in (3, 0, 4):
        assert number in paused
        looked = paused.state_of(number)
        back, its_group = paused.take(number)
        assert its_group is GROUP
        assert back is given[number]
        assert back.state is not None and states[number] is not None
        same(back.state, states[number])
        same(looked, states[number])
    assert len(paused) == 2
    paused.close()


def test_paused_trials_are_those_of_their_groups() -> None:
    paused, other = PausedStates(), group()
    for number in range(3):
        paused.put(trial(number), other if number == 1 else GROUP)
    assert numbers(paused.of(GROUP)) == [0, 2]
    assert numbers(paused.of(other)) == [1]
    assert paused.numbers == [0, 1, 2]
    with pytest.raises(KeyError, match="^9$"):
        paused.take(9)


def test_each_pause_of_a_trial_has_a_key_of_its_own() -> None:
    """A checkpoint writes what lies under a key only once."""
    paused = PausedStates()
    paused.put(trial(3), GROUP)
    first = paused.key(3)
    paused.put(*paused.take(3))
    assert paused.key(3) != first


def test_files_are_removed_with_their_trials_and_on_close() -> None:
    paused = PausedStates(0)
    for number in range(3):
        paused.put(trial(number), GROUP)
    folder = Path(paused._folder.name)  # pyright: ignore[reportOptionalMemberAccess]
    assert len(list(folder.iterdir())) == 3
    paused.drop(1)
    paused.drop(1)
    paused.take(0)
    assert [file.name for file in folder.iterdir()] == ["2.state"]
    paused.close()
    assert not folder.exists()


def test_a_disk_that_takes_nothing_leaves_states_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    paused = PausedStates(0)
    monkeypatch.setattr(Path, "open", full)
    paused.put(trial(0), GROUP)
    assert paused.on_disk == 0
    assert paused.take(0)[0].state is not None
    paused.close()


class Rows:
    plan, layout = "vectorized", None

    def row(self, part: list[Any], slot: int) -> list[np.ndarray]:
        return [np.array(a[slot]) for a in part]


def lent(number: int, stack: slot_rows.SlotStack) -> SlotTrial:
    return SlotTrial(number, number, 9, stack.lend(number), ())


def test_states_on_a_device_count_when_they_come_to_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the device they are not in the host's memory, so the limit says nothing of them."""
    monkeypatch.setattr(slot_rows, "host_is_device", lambda: False)
    array = np.arange(40.0, dtype=np.float32).reshape(4, 10)
    stack = slot_rows.SlotStack(Rows(), [[jax.device_put(array)], [], [], []])
    paused = PausedStates(limit=100)
    for number in range(4):
        paused.put(lent(number, stack), GROUP)
    assert (paused.on_disk, paused.device_bytes) == (0, 160)
    paused.drop(3)
    assert paused.device_bytes == 120
    stack.detach()
    paused.count_anew()
    assert (paused.on_disk, paused.device_bytes) == (1, 0), "40 of 120 bytes are too many"
    for number in range(3):
        back, _ = paused.take(number)
        assert back.state is not None
        np.testing.assert_array_equal(np.asarray(back.state.trainable[0]), array[number])
    paused.close()


def test_states_leave_a_device_that_lacks_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_rows, "host_is_device", lambda: False)
    array = np.arange(40.0, dtype=np.float32).reshape(4, 10)
    stack = slot_rows.SlotStack(Rows(), [[jax.device_put(array)], [], [], []])
    paused = PausedStates()
    paused.put(lent(2, stack), GROUP)
    paused.leave_device()
    assert (paused.device_bytes, stack.n_lent) == (0, 0)
    np.testing.assert_array_equal(paused.state_of(2).trainable[0], array[2])


@pytest.mark.parametrize("wrong", ["shape", "dtype", "fewer"])
def test_arrays_of_another_model_are_no_state(wrong: str) -> None:
    like = trial(0).state
    assert like is not None
    parts: list[list[Any]] = [list(part) for part in like.lists()]
    found = state_like(like, parts)
    assert found is not None
    same(found, like)
    if wrong == "fewer":
        parts[0].pop()
    else:
        weights = parts[0][0]
        others = {"shape": weights[:2], "dtype": weights.astype(np.float64)}
        parts[0][0] = others[wrong]
    assert state_like(like, parts) is None


# -- snapshots -------------------------------------------------------------------------------------

DATA = SearchData(prepare(*toys.data()), prepare(*toys.data(23, seed=1)))
RATES = [0.1, 0.2, 0.3, 0.4, 0.15]
EPOCHS = 4


def nobody(number: int) -> None:
    """No trial that has ended can be built again."""


def small(hp: Any) -> keras.Model:
    return toys.dense(hp)


def wider(hp: Any) -> keras.Model:
    """Another model of the same trials."""
    return toys.dense_with(hp, "elu")


class Run:
    """Five trials in two slots: in every snapshot some train, some wait and one is paused.

    Args:
        build: Builds their models.
        slots: Slots of the pack.
    """

    def __init__(self, build: Any = small, slots: int = 2) -> None:
        self._build = ModelBuilder(build)
        self.local = LocalExecutor(DATA, PackOptions(slots=slots, plan="vectorized"))
        self.logs: dict[int, list[dict[str, float]]] = {n: [] for n in range(len(RATES))}
        self.weights: dict[int, list[np.ndarray]] = {}

    def model(self, number: int) -> Any:
        with random_state_kept():
            return self._build(HyperParameters(values={"dropout": RATES[number]}), number)

    def submit(self, *chosen: int) -> None:
        for number in chosen:

            def rebuild(number: int = number) -> Any:
                return self.model(number)

            self.local.submit(Job(number, number, EPOCHS, 16, rebuild(), rebuild))

    def train(self, rounds: int = 100, pauses: int = -1) -> None:
        """Trains so many rounds; trial ``pauses`` waits after its first epoch."""

        def report(epoch: EpochReport) -> Answer:
            self.logs[epoch.number].append(epoch.logs)
            trainable, non_trainable = epoch.weights()
            self.weights[epoch.number] = [*trainable, *non_trainable]
            return "pause" if epoch.number == pauses and epoch.epoch == 1 else "continue"

        def failed(number: int, error: BaseException) -> None:
            raise error

        while rounds and self.local.busy:
            rounds -= 1
            self.local.advance(report, lambda: False, failed)

    def finish(self) -> None:
        self.local.resume(1)
        self.train()
        self.local.close()


@pytest.fixture(scope="module")
def whole() -> tuple[Run, dict[str, Any], Arrays, dict[int, tuple[int, State]]]:
    """A run to its end, with what a snapshot after its second round held."""
    run, arrays, lasting = Run(), {}, {}
    run.submit(*range(len(RATES)))
    run.train(2, pauses=1)
    facts = stored(run.local.snapshot(arrays, lasting))
    states = run.local.states()
    assert len(lasting) == 1
    for own in lasting.values():
        arrays |= own
    arrays = {name: np.array(array) for name, array in arrays.items()}
    before = {number: len(logs) for number, logs in run.logs.items()}
    run.finish()
    return run, {"facts": facts, "before": before}, arrays, states


def test_what_goes_on_from_a_snapshot_is_the_same_to_the_bit(whole) -> None:
    run, snapshot, arrays, _ = whole
    assert snapshot["before"] == {0: 2, 1: 1, 2: 1, 3: 0, 4: 0}
    again = Run()
    with again.local.resubmitting(read(snapshot["facts"]), nobody):
        again.submit(*reversed(range(len(RATES))))  # in whatever order
    assert again.local.restore(read(snapshot["facts"]), dict(arrays), nobody) == []
    (made,) = again.local._grouper.groups
    (pack,) = made.packs
    assert [t and t.number for t in pack.slots] == snapshot["facts"]["groups"][0]["packs"][0]
    assert numbers(made.queue) == [3, 4], "those that wait, in their order"
    again.finish()
    for number, logs in run.logs.items():
        assert again.logs[number] == logs[snapshot["before"][number] :]
        for ours, theirs in zip(again.weights[number], run.weights[number], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_snapshot_that_is_restored_is_the_same_snapshot(whole) -> None:
    _, snapshot, arrays, _ = whole
    again = Run()
    again.submit(*range(len(RATES)))
    again.local.restore(read(snapshot["facts"]), dict(arrays), nobody)
    found: Arrays = {}
    lasting: dict[str, Arrays] = {}
    facts = stored(again.local.snapshot(found, lasting))
    for own in lasting.values():
        found |= own
    assert facts == snapshot["facts"]
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    again.local.close()


def test_the_names_in_a_snapshot_are_those_of_users_checkpoints(whole) -> None:
    _, snapshot, arrays, _ = whole
    facts = snapshot["facts"]
    assert set(facts) == {"device", "sharing", "groups", "asking", "rounds"}
    (made,) = facts["groups"]
    assert set(made) == {
        *("name", "example", "seen", "trials", "most_slots", "program", "met", "roles"),
        *("packs", "queue", "parked", "epochs", "callbacks"),
    }
    assert set(made["program"]) == {"plan", "slots", "quick", "layout"}
    assert set(made["roles"][0]) == {"constants", "observed", "lifted", "settled", "widened"}
    assert (made["parked"], made["queue"]) == ([1], [3, 4])
    assert made["epochs"] == {"0": 2, "1": 1, "2": 1, "3": 0, "4": 0}
    kinds = {name.rsplit(".", 2)[0] for name in arrays}
    assert kinds == {"job.0", "job.1", "job.2"}


def test_a_group_that_ran_out_of_memory_beside_others_stays_alone(whole) -> None:
    """Else a resumed search puts it beside others again, and its trials end in another order."""
    _, snapshot, arrays, _ = whole
    facts = read(snapshot["facts"])
    for expected in (False, True):
        again = Run()
        again.submit(*range(len(RATES)))
        again.local.restore(facts, dict(arrays), nobody)
        (made,) = again.local._grouper.groups
        assert made.alone is expected
        made.alone = True
        facts = read(stored(again.local.snapshot({}, {})))
        again.local.close()


def test_states_are_those_of_trials_in_slots_after_an_epoch(whole) -> None:
    _, _, arrays, states = whole
    assert {number: epoch for number, (epoch, _) in states.items()} == {0: 2, 2: 1}
    np.testing.assert_array_equal(states[2][1].trainable[0], arrays["job.2.0.0"])


def test_trials_whose_variables_are_gone_begin_again(whole) -> None:
    run, snapshot, arrays, _ = whole
    left = {name: array for name, array in arrays.items() if not name.startswith("job.2.")}
    again = Run()
    again.submit(*range(len(RATES)))
    assert again.local.restore(read(snapshot["facts"]), left, nobody) == [2]
    again.finish()
    assert [len(logs) for logs in again.logs.values()] == [2, 3, 4, 4, 4]
    assert again.logs[2] == run.logs[2], "from the same seed"


def test_trials_of_another_model_all_begin_again(whole) -> None:
    _, snapshot, arrays, _ = whole
    again = Run(wider)
    with again.local.resubmitting(read(snapshot["facts"]), nobody):  # nothing is compiled
        again.submit(*range(len(RATES)))
    lost = again.local.restore(read(snapshot["facts"]), dict(arrays), nobody)
    assert sorted(lost) == [0, 1, 2], "those that had trained"
    assert again.local.waiting == len(RATES)
    again.local.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"asking": [1, 2, 3]}, r"`object`, got `array` - at `\$\.asking`"),
        ({"rounds": {"number": -1}}, r">= 0 - at `\$\.rounds\.number`"),
        ({"groups": [{}]}, r"`name` - at `\$\.groups\[0\]`"),
    ],
)
def test_facts_of_another_form_are_refused(whole, change, said) -> None:
    _, snapshot, _, _ = whole
    with pytest.raises(msgspec.ValidationError, match=said):
        read(snapshot["facts"] | change)


def test_programs_alone_are_compiled_again_and_all_trials_begin_again(whole) -> None:
    _, snapshot, _, _ = whole
    one = Run()
    one.submit(0)
    facts = stored(one.local.programs_snapshot())
    assert (facts["groups"][0]["packs"], facts["groups"][0]["epochs"]) == ([], {})
    one.local.close()
    again = Run()
    inputs = TrialInputs(DATA.train, DATA.validation, 16, 16)
    asked: list[int] = []

    def example(number: int) -> tuple[Any, TrialInputs]:
        asked.append(number)
        return again.model(number), inputs

    assert again.local.restore(read(facts), {}, example) == []
    assert asked == [0], "its trials are not there, so a model of one shows which program it is"
    again.submit(0)
    (made,) = again.local._grouper.groups
    assert made.name == snapshot["facts"]["groups"][0]["name"]
    assert numbers(made.queue) == [0]
    again.local.close()


def test_a_program_that_nobody_has_needed_since_is_remembered_again() -> None:
    """Else the third process would choose its slots anew: 1, and XLA may round otherwise."""
    one = Run()
    one.submit(0, 1)
    one.train()
    facts = stored(one.local.snapshot({}, {}))
    assert facts["groups"][0]["epochs"] == {}, "all its trials have ended"
    inputs = TrialInputs(DATA.train, DATA.validation, 16, 16)
    run, again = one, facts
    for _ in range(2):
        run = Run()
        example = (run.model(0), inputs)
        assert run.local.restore(read(again), {}, lambda number, of=example: of) == []
        again = stored(run.local.snapshot({}, {}))
        assert again["groups"][0]["program"] == facts["groups"][0]["program"] is not None
    run.submit(2)
    run.train()
    (made,) = run.local._grouper.groups
    assert made.program is not None and made.program.n_slots == 2
    for each in (one, run):
        each.local.close()


def test_a_trial_sits_in_the_slot_it_had_and_its_group_keeps_its_round(whole) -> None:
    _, snapshot, arrays, _ = whole
    (made,) = snapshot["facts"]["groups"]
    held = {"packs": [[None, 0]], "queue": [], "parked": [], "epochs": {"0": 2}, "met": 7}
    again = Run()
    with again.local.resubmitting(read(snapshot["facts"]), nobody):
        again.submit(0)
    facts = snapshot["facts"] | {"groups": [made | held]}
    assert again.local.restore(read(facts), dict(arrays), nobody) == []
    (found,) = again.local._grouper.groups
    assert slots_of(found) == [[None, 0]]
    assert found.asked_round == 7
    again.local.close()


def test_a_trial_that_begins_again_takes_back_what_it_appended_to_its_log(tmp_path: Path) -> None:
    """It had trained no epoch when the snapshot was taken, and then the process was killed."""
    log = tmp_path / "log.csv"
    log.write_text("epoch,loss\n99,0\n")

    def submitted(local: LocalExecutor) -> None:
        def rebuild() -> Any:
            return Run().model(0)

        logger = keras.callbacks.CSVLogger(str(log), append=True)
        local.submit(Job(0, 0, 2, 16, rebuild(), rebuild, callbacks=lambda number, model: [logger]))

    first, again = Run(), Run()
    submitted(first.local)
    facts = stored(first.local.snapshot({}, {}))
    first.train(1)
    first.local.close()
    assert len(log.read_text().splitlines()) == 3
    with again.local.resubmitting(read(facts), nobody):
        submitted(again.local)
    assert again.local.restore(read(facts), {}, nobody) == []
    again.train()
    again.local.close()
    epochs = [line.split(",")[0] for line in log.read_text().splitlines()]
    assert epochs == ["epoch", "99", "0", "1"]
