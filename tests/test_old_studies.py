"""Studies of earlier versions, as they were written then: they open, and go on.

``old_studies/first`` is by the first version that searched (three trials, and three under way when
it was interrupted), ``second`` by the first that wrote checkpoints (killed after the first epoch of
six trials; its checkpoints cannot be gone on with), ``third`` by the last whose checkpoints know
nothing of what is on the clock.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import optuna
import pytest

import paceline
import toys
from marks import slow_where
from old_studies import write
from paceline.cli.app import main
from paceline.executor.base import FamilyRules
from paceline.executor.local import LocalExecutor
from paceline.pack.plan.stacked import StackedProgram
from paceline.tuner import provenance
from paceline.tuner.checkpoint import files
from stopping import hears_signals  # noqa: F401 - a fixture

OLD = write.HERE
X, Y = toys.data()
CALL: dict[str, Any] = {
    "validation_data": toys.data(23, seed=1),
    "epochs": 4,
    "batch_size": 16,
}


def build(hp: Any) -> Any:
    return toys.compiled(toys.softmax(), hp.Float("lr", 1e-3, 1e-1, sampling="log"))


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def open_old(fresh_folder: Path, notes: list[str]):
    def opened(name: str) -> paceline.Tuner:
        if not Path("runs/s").exists():
            shutil.copytree(OLD / name, "runs/s")
        return paceline.Tuner(build, study="s", sampler="random", slots=2, notes=notes.append)

    return opened


def test_the_first_version(open_old, capsys) -> None:
    before = open_old("first").results()
    assert before["state"].tolist()[:3] == ["complete"] * 3
    assert open_old("first").best_trial.number == 2
    model = open_old("first").best_model()
    score = model.evaluate(*CALL["validation_data"], verbose=0, return_dict=True)
    assert score["accuracy"] == pytest.approx(open_old("first").best_trial.value, abs=1e-6)
    with pytest.raises(SystemExit, match="^0$"):
        main(["trials", "s", "--json"])
    assert len(json.loads(capsys.readouterr().out.splitlines()[-1])) == len(before)
    tuner = open_old("first")
    tuner.search(X, Y, n_trials=6, **CALL)
    results = tuner.results()
    assert (results["state"] == "complete").sum() == 6
    assert set(results[results["state"] == "failed"]["error"]) <= {"interrupted"}
    assert len(results) == len(before) + 6 - 3
    # Those of the first session are the best of a longer one too.
    tuner.search(X, Y, continue_best=2, **(CALL | {"epochs": 6}))
    assert tuner.results()["epochs"][-2:].tolist() == [6, 6]


def test_checkpoints_of_another_kind_are_left(open_old, notes) -> None:
    tuner = open_old("second")
    tuner.search(X, Y, n_trials=6, **CALL)
    assert (tuner.results()["state"] == "complete").sum() == 6
    assert any("the 6 trials that were under way begin again as new ones" in n for n in notes)
    assert not Path("runs/s/checkpoints").exists()


def test_checkpoints_that_know_less(open_old, notes) -> None:
    tuner = open_old("third")
    tuner.search(X, Y, n_trials=6, **CALL)
    assert tuner.results()["state"].tolist() == ["complete"] * 6
    assert tuner.results()["epochs"].tolist() == [4] * 6
    assert any("going on from the last checkpoint" in note for note in notes)


def rewritten(change: Any) -> None:
    """The newest checkpoint, its facts changed."""
    path = sorted(Path("runs/s/checkpoints").iterdir())[-1]
    snapshot, why = files.load_checkpoint(path, path.stem[-16:])
    assert snapshot is not None, why
    change(snapshot.facts)
    path.unlink()
    files.save_checkpoint(path.parent, "checkpoint-000002", snapshot)


def test_checkpoints_that_know_more(open_old) -> None:
    def more(facts: dict[str, Any]) -> None:
        for was in facts["trials"].values():
            was["weather"] = "fine"
        facts["more"] = [1, 2, 3]

    open_old("third")
    rewritten(more)
    tuner = open_old("third")
    tuner.search(X, Y, n_trials=6, **CALL)
    assert tuner.results()["state"].tolist() == ["complete"] * 6


def test_checkpoints_of_a_round_that_owes_less_than_nothing(open_old, notes) -> None:
    """As versions wrote them that were interrupted while a program was compiled."""
    open_old("third")
    rewritten(lambda facts: facts.update(owed=-1))
    tuner = open_old("third")
    tuner.search(X, Y, n_trials=6, **CALL)
    assert tuner.results()["state"].tolist() == ["complete"] * 6
    assert any("going on from the last checkpoint" in note for note in notes)


def test_checkpoints_that_are_something_else(open_old) -> None:
    open_old("third")
    rewritten(lambda facts: facts["packs"].pop("groups"))
    with pytest.raises(
        paceline.StudyError, match=r"packs: object missing .*groups.*or remove .*checkpoints"
    ):
        open_old("third").search(X, Y, n_trials=6, **CALL)
    shutil.rmtree("runs/s/checkpoints")
    tuner = open_old("third")
    tuner.search(X, Y, n_trials=6, **CALL)
    assert (tuner.results()["state"] == "complete").sum() == 6


def test_a_newer_format_says_so(open_old, notes, monkeypatch) -> None:
    monkeypatch.setattr(files, "FORMAT", 9)
    monkeypatch.setattr(files, "READS", (9,))
    open_old("third")
    rewritten_as = files.CheckpointManager(Path("runs/s/checkpoints"), notes.append)
    assert rewritten_as.load() is None
    assert all("of format 1, this version reads up to 9 (go on with" in n for n in notes)
    text = Path("runs/s/journal.log").read_text()
    Path("runs/s/journal.log").write_text(text.replace('"format":1', '"format":9'))
    with pytest.raises(paceline.StudyError, match="format 9 by a newer Paceline.*pip install"):
        open_old("third").results()


def test_other_versions_of_libraries_are_told_of(open_old, notes) -> None:
    open_old("third")
    path = Path("runs/s/journal.log")
    import keras

    assert f'"keras":"{keras.__version__}"' in path.read_text() or "keras" in path.read_text()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        meta = line.get("user_attr", {}).get("paceline", {})
        if "versions" in meta:
            meta["versions"]["keras"] = "3.1.0"
            meta["compiled_with"] = {"xla_backend_extra_options": "another"}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tuner = open_old("third")
    tuner.search(X, Y, n_trials=6, **CALL)
    assert any(f"keras is {keras.__version__} and was 3.1.0" in note for note in notes)
    assert any(re.search("xla_backend_extra_options is .* and was another", n) for n in notes)
    assert (tuner.results()["state"] == "complete").sum() == 6


# -- studies that write.py has written: how each case goes on ------------------------------------

#: What a history may differ by from that of a processor that rounds otherwise, or of XLA at another
#: level: float32 has 1e-7, and a few dozen steps of Adam make more of it. Another seed, order of
#: examples or epoch differs by 1e-2 and more.
TOLERANCE: dict[str, float] = {"rel": 1e-3, "abs": 1e-4}
#: An accuracy is a share of 50 or 23 examples, of which one may stand on the edge.
ONE_EXAMPLE = 1 / 23
#: JAX 0.10 wrote the studies. JAX 0.6 traces other steps (``pjit`` in place of ``jit``, and other
#: parameters), and so does JAX 0.12, whose functions consist of other operations: trials under way
#: begin again, with a note.
OTHER_STEPS = not jax.__version__.startswith("0.10.")
#: Those that few others are like stay in ``make test``.
QUICK = ("sqlite", "asha")
WRITTEN = slow_where(write.CASES, lambda name: name not in QUICK)


def copied(name: str) -> dict[str, Any]:
    """Puts a written study into ``runs/s``; returns what was known of it then."""
    shutil.copytree(OLD / name, "runs/s")
    return json.loads((OLD / f"{name}.json").read_text())


def near(one: Any, other: Any, name: str = "") -> None:
    """Two JSON values are the same but for the last bits of numbers that training has made."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), name
        for key in one:
            near(one[key], other[key], f"{name}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), name
        for at, (a, b) in enumerate(zip(one, other, strict=True)):
            near(a, b, name if isinstance(a, float) else f"{name}.{at}")
    elif isinstance(one, float) and ".hparams" not in name:
        tolerance = {"abs": ONE_EXAMPLE + 1e-6} if "accuracy" in name else TOLERANCE
        assert one == pytest.approx(other, **tolerance), name
    else:
        assert one == other, name


def decided_by_two_releases(name: str, one: Any, other: Any) -> list[str]:
    """Trials that other releases than those that wrote the studies draw or prune otherwise.

    The studies are by Optuna 5, with trials of TPE under way: for trial 14 of ``sqlite``, Optuna 4
    draws another rate from the beginning. Where trials begin again (``OTHER_STEPS``), a pruner that
    compares trials knows other epochs of them when it is asked. A search that a release has begun
    itself goes on to the bit with it: tests/tuner/test_resume.py.
    """
    arguments = write.CASES[name].tuner
    otherwise: set[str] = set()
    if optuna.__version__.startswith("4.") and arguments.get("sampler") == "tpe":
        otherwise |= {n for n, trial in one.items() if trial["hparams"] != other[n]["hparams"]}
    if OTHER_STEPS and "pruner" in arguments:
        otherwise |= {n for n, trial in one.items() if trial["state"] != other[n]["state"]}
    return sorted(otherwise)


def same_trials(name: str, resumed: paceline.Tuner, whole: paceline.Tuner) -> None:
    """Trials of a search that went on are those of one that was never interrupted."""
    one, other = write.ended(resumed), write.ended(whole)
    assert one.keys() == other.keys()
    for number in decided_by_two_releases(name, one, other):
        trial, _ = one.pop(number), other.pop(number)
        again = resumed.reproduce(int(number), write.X, write.Y, validation_data=write.VALIDATION)
        near(trial["history"], again.history, number)
    near(one, other)


@pytest.mark.parametrize("name", write.CASES)
def test_a_written_study_opens(fresh_folder, name) -> None:
    was = copied(name)
    tuner = write.tuner(name)
    assert write.ended(tuner) == was["ended"]
    assert "running" in tuner.results()["state"].tolist()
    complete = {n: trial for n, trial in was["ended"].items() if trial["state"] == "complete"}
    best = min(complete, key=lambda n: complete[n]["value"])
    assert tuner.best_trial.number == int(best)
    assert tuner.best_trial.value == complete[best]["value"]
    model = write.tuner(name).best_model()
    if not complete[best]["members"]:  # else the value is a mean over several models
        score = model.evaluate(*write.VALIDATION, verbose=0, return_dict=True)
        assert score["loss"] == pytest.approx(complete[best]["value"], **TOLERANCE)


@pytest.fixture
def families_as_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """New studies join trials by the rules of the written ones.

    ASHA decides by the order in which epochs end, which follows from who shares a program.
    """
    monkeypatch.setattr(provenance, "FAMILY_RULES", FamilyRules(1))


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.usefixtures("families_as_then")
def test_a_written_study_goes_on_to_its_end(fresh_folder, notes, name) -> None:
    was = copied(name)
    looks: dict[str, list[Any]] = {"s": [], "whole": []}
    tuners = {
        study: write.tuner(name, study, notes=notes.append, progress=seen.append)
        for study, seen in looks.items()
    }
    for tuner in tuners.values():
        write.search(name, tuner)
    assert sum("going on from the last checkpoint" in note for note in notes) == 1
    begun_again = [note for note in notes if "begin again" in note]
    assert all("a library has changed" in note and OTHER_STEPS for note in begun_again)
    ended = {study: write.ended(tuner) for study, tuner in tuners.items()}
    assert len(ended["s"]) == len(tuners["s"].results())  # nothing is under way
    assert {n: ended["s"][n] for n in was["ended"]} == was["ended"]
    same_trials(name, tuners["s"], tuners["whole"])
    if not begun_again:
        assert looks["s"][-1].trial_epochs == looks["whole"][-1].trial_epochs  # none came twice
    one, other = (tuner.best_model().get_weights() for tuner in tuners.values())
    for a, b in zip(one, other, strict=True):
        assert a == pytest.approx(b, **TOLERANCE)
    assert not Path("runs/s/checkpoints").exists()


# Not asha: that version wrote checkpoints while the search went on with their lists of rungs.
@pytest.mark.parametrize("name", slow_where(["callbacks", "fit", "sqlite", "folds"], bool))
@pytest.mark.usefixtures("families_as_then")
def test_the_checkpoint_before_is_gone_on_from(fresh_folder, notes, name) -> None:
    """The storage is then ahead of it: trials that it has ended are under way again."""
    copied(name)
    newest = sorted(Path("runs/s/checkpoints").glob("checkpoint-*"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    tuners = [write.tuner(name, study, notes=notes.append) for study in ("s", "whole")]
    for tuner in tuners:
        write.search(name, tuner)
    assert any("is damaged: the one before is taken" in note for note in notes)
    assert any("going on from the last checkpoint" in note for note in notes)
    same_trials(name, *tuners)


def programs_wait_for_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has trials that continue others wait for their program until the search is stopped.

    So they were when the study was written; a program that is there at once (of another test, on
    disk) would have them in a pack, under other names.
    """
    start_from, ready = LocalExecutor.start_from, StackedProgram.ready
    continued: list[int] = []

    def started(self: LocalExecutor, number: int, *arguments: Any) -> Any:
        continued.append(number)
        return start_from(self, number, *arguments)

    monkeypatch.setattr(LocalExecutor, "start_from", started)
    monkeypatch.setattr(StackedProgram, "ready", lambda self: not continued and ready(self))


@pytest.mark.slow
def test_a_study_keeps_the_rules_by_which_it_joins_trials(fresh_folder) -> None:
    """So those under way go on in the programs that they had; a new study has the present rules."""
    copied("asha")
    for study, rules in (("s", 1), ("new", FamilyRules().version)):
        tuner = write.tuner("asha", study)
        write.search("asha", tuner)
        meta = tuner.optuna_study().user_attrs["paceline"]
        assert meta["families"] == rules


#: A batch size that nobody gave was null, as one by hp still is; `reproduce` took it for that.
LEFT_OUT = {"user_attr paceline.search.batch_size"}


@pytest.mark.parametrize("name", WRITTEN)
def test_names_in_files_are_those_of_written_studies(fresh_folder, monkeypatch, name) -> None:
    """What is renamed can no longer be read in a study that is there; what is new may be."""
    before = json.loads((OLD / f"{name}.json").read_text())["names"]
    if name == "longer":
        programs_wait_for_a_stop(monkeypatch)
    # A stream has trained little when the build comes at which the case stops, so that nothing of
    # best models is in its checkpoint yet; the studies were written in rounds.
    monkeypatch.setattr(LocalExecutor, "streaming", False)
    # Where structures share a program, models are built that are no trial's, and the stop of a case
    # counts builds.
    write.interrupted(name, widths="apart")
    now = write.names(Path("runs/s"))
    left = {kind: {*before[kind]} - {*now.get(kind, ())} - LEFT_OUT for kind in before}
    assert not {kind: names for kind, names in left.items() if names}
    assert not {*before} - {*now}


def test_written_studies_name_no_folder_of_anyone() -> None:
    folders = set()
    for path in OLD.rglob("*"):
        if path.is_file() and path.name != "write.py" and "__pycache__" not in path.parts:
            folders |= set(
                re.findall(rb"(?<![\w.])/(?:tmp|home|root|work|Users)/[^/\"' ]*", path.read_bytes())
            )
    assert folders == {str(write.NEUTRAL).encode()}
