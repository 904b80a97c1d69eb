"""What is learnt of earlier studies: ranks, matching parameters, and nothing that counts."""

from __future__ import annotations

import hashlib
import math
import shutil
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState

from as_optuna import optuna_study
from paceline.errors import PacelineError, StorageError, StudyError, UsageError
from paceline.search_space import HyperParameters
from paceline.study.metadata import StoredStudy
from paceline.study.samplers.earlier_studies import (
    KEPT,
    EarlierStudy,
    check_warm_start_from,
    notes_on,
    read_earlier_studies,
    stored_earlier_studies,
)
from paceline.study.sharing.worker import Worker
from paceline.study.study import Study
from paceline.study.trials.trial_codec import constraint_attributes

RATE = FloatDistribution(1e-4, 1e-1, log=True)


def trial(number: int, value: float | None, params: dict[str, Any], kinds: Any) -> FrozenTrial:
    state = OptunaState.COMPLETE if value is not None else OptunaState.PRUNED
    made = create_trial(state=state, value=value, params=params, distributions=kinds)
    made.number = number
    return made


def stored(values: list[float | None], direction: Any = "minimize") -> StoredStudy:
    rows = [trial(i, v, {"lr": 10 ** -(1 + i / 200)}, {"lr": RATE}) for i, v in enumerate(values)]
    return StoredStudy((direction,), {}, rows)


# Of one study


@pytest.mark.parametrize(("direction", "best"), [("minimize", 1), ("maximize", 2)])
def test_a_trial_is_known_by_its_rank_among_the_complete_ones(direction, best):
    learnt = EarlierStudy.of("old", stored([3.0, 1.0, 4.0, None, 1.5], direction))
    assert len(learnt.trials) == 4  # in the order of their numbers; the pruned one says nothing
    by_rank = sorted(learnt.trials, key=lambda t: t.rank)
    assert [t.rank for t in by_rank] == [0.125, 0.375, 0.625, 0.875]
    assert by_rank[0].params["lr"] == 10 ** -(1 + best / 200)
    scaled = EarlierStudy.of("old", stored([300.0, 100.0, 400.0, None, 150.0], direction))
    assert scaled == learnt  # scales of objectives do not matter


def test_trials_that_violate_a_constraint_rank_behind_all_others():
    study = stored([1.0, 2.0, 3.0, 4.0])
    for number, over in ((0, 0.5), (1, 0.2), (3, -1.0)):
        study.trials[number].system_attrs = constraint_attributes({"c": over})
    learnt = EarlierStudy.of("old", study)
    assert [t.rank for t in learnt.trials] == [0.875, 0.625, 0.125, 0.375]


def test_of_several_objectives_the_first_ranks_and_a_note_says_so():
    rows = [
        create_trial(values=[value, -value], params={"lr": 0.01}, distributions={"lr": RATE})
        for value in (2.0, 1.0)
    ]
    rows[0].number, rows[1].number = 0, 1
    learnt = EarlierStudy.of("old", StoredStudy(("minimize", "minimize"), {}, rows))
    assert [t.rank for t in learnt.trials] == [0.75, 0.25]
    hp = HyperParameters()
    hp.Float("lr", 1e-4, 1e-1, sampling="log")
    _, (note,) = notes_on([learnt], dict(hp.parameters))
    assert note.endswith(
        "which do not count as trials of this study. Only the first of its 2 objectives is used"
    )


def test_of_a_long_study_the_best_are_kept_and_others_of_all_ranks():
    learnt = EarlierStudy.of("old", stored([float(i) for i in range(400)]))
    ranks = sorted(t.rank for t in learnt.trials)
    assert len(ranks) == KEPT
    assert ranks[: KEPT // 2] == [(i + 0.5) / 400 for i in range(KEPT // 2)]
    gaps = [b - a for a, b in zip(ranks[KEPT // 2 :], ranks[KEPT // 2 + 1 :], strict=False)]
    assert max(gaps) == pytest.approx(7 / 400) and ranks[-1] > 0.97


# Matching


def learnt_of(params: dict[str, Any], kinds: dict[str, Any]) -> EarlierStudy:
    return EarlierStudy.of("old", StoredStudy(("minimize",), {}, [trial(0, 1.0, params, kinds)]))


def test_wider_and_narrower_floats_work_and_values_out_of_bounds_do_not():
    learnt = learnt_of({"lr": 1e-3}, {"lr": RATE})
    for low, high in ((1e-6, 1.0), (5e-4, 2e-3)):
        now = FloatDistribution(low, high, log=True)
        assert learnt.values(learnt.trials[0], {"lr": now}) == {"lr": 1e-3}
    assert learnt.values(learnt.trials[0], {"lr": FloatDistribution(1e-2, 1.0)}) is None


@pytest.mark.parametrize(
    ("then", "value", "now"),
    [
        (RATE, 1e-3, IntDistribution(1, 9)),
        (RATE, 1e-3, CategoricalDistribution((1e-3, 1e-2))),
        (CategoricalDistribution((8, 16)), 8, CategoricalDistribution((8, 16, 32))),
        (CategoricalDistribution((0, 1)), 1, CategoricalDistribution((False, True))),
    ],
    ids=["int", "choice", "more choices", "booleans"],
)
def test_another_kind_is_dropped_with_a_note_that_names_it(then, value, now):
    kinds = {"a": then, "lr": RATE}
    learnt = learnt_of({"a": value, "lr": 1e-3}, kinds)
    assert learnt.values(learnt.trials[0], {"a": now, "lr": RATE}) == {"lr": 1e-3}
    hp = HyperParameters()
    hp.Float("lr", 1e-4, 1e-1, sampling="log")
    parameters = dict(hp.parameters)
    lr = parameters["lr"]
    parameters["a"] = type(lr)("a", "a", now, 0)
    kept, notes = notes_on([learnt], parameters)
    assert kept == [learnt]
    assert (
        "warm-starting from 1 trials of study 'old'" in notes[0]
        and "Values of a are not used" in notes[0]
    )
    del parameters["lr"]
    kept, notes = notes_on([learnt], parameters)
    assert kept == [] and "has none of this study's hyperparameters" in notes[0]


def test_a_value_that_is_stored_reversed_is_the_same_real_value_in_other_bounds():
    def momentum(low: float, high: float) -> Any:
        hp = HyperParameters(values={"m": 0.8})
        hp.Float("m", low, high, sampling="reverse_log")
        (name,) = hp.parameters
        return name, hp.parameters[name], hp.to_storage()[name]

    name, then, value = momentum(0.1, 0.9)
    _, now, expected = momentum(0.05, 0.99)
    learnt = learnt_of({name: value}, {name: then.distribution})
    found = learnt.values(learnt.trials[0], {name: now.distribution})
    assert found is not None and found[name] == pytest.approx(expected)
    assert now.from_storage(found[name]) == pytest.approx(0.8)


def test_what_is_stored_comes_back_and_anything_else_is_an_error():
    kinds = {"lr": RATE, "n": IntDistribution(1, 9, step=2), "k": CategoricalDistribution((1, "a"))}
    learnt = learnt_of({"lr": 1e-3, "n": 3, "k": "a"}, kinds)
    (again,) = stored_earlier_studies("s", [learnt.to_json()])
    assert again == learnt
    for wrong in (
        {"study": "x"},
        {**learnt.to_json(), "trials": [[2.0, {"lr": 1e-3}]]},
        {**learnt.to_json(), "trials": [[0.5, {"other": 1}]]},
        {**learnt.to_json(), "kinds": {"lr": {"name": "os.system"}}},
        {**learnt.to_json(), "trials": 3},
        {**learnt.to_json(), "trials": [[0.5, {"lr": "0.001"}]]},
        {**learnt.to_json(), "trials": [[0.5, {"lr": math.inf}]]},
        {**learnt.to_json(), "trials": [[0.5, {"n": 3.5}]]},
        {**learnt.to_json(), "trials": [[0.5, {"k": True}]]},
    ):
        with pytest.raises(StudyError, match="its copy of earlier studies cannot be read"):
            stored_earlier_studies("s", [wrong])


# In searches of studies


def declare(hp: Any, proposal: Any = None) -> dict[str, Any]:
    hp.Float("lr", 1e-5, 1.0, sampling="log")
    hp.Float("dropout", 0.0, 1.0)
    return dict(hp.hparams)


def more(hp: Any, proposal: Any = None) -> dict[str, Any]:
    """A parameter that the earlier study does not have."""
    hp.Float("momentum", 0.0, 1.0)
    return declare(hp)


def value_of(hparams: dict[str, Any]) -> float:
    """Good at a rate of 0.01 and a dropout of 0.8, far from the middle of both ranges."""
    return (math.log10(hparams["lr"]) + 2) ** 2 + 9 * (hparams["dropout"] - 0.8) ** 2


def search(
    name: str,
    n: int,
    warm_start_from: tuple[str, ...] = (),
    build: Any = declare,
    sampler: str = "tpe",
    storage: str | None = None,
    scale: float = 1.0,
    direction: Any = "minimize",
    notes: list[str] | None = None,
) -> list[dict[str, Any]]:
    """Go on to ``n`` trials, one at a time; return the hparams of all."""
    study = Study(
        name,
        storage=storage,
        direction=direction,
        sampler=sampler,
        seed=len(name),
        n_trials=n,
        note=lambda text: None if notes is None else notes.append(text),
    )
    hp = HyperParameters()
    build(hp)
    study.metadata.space.learn(hp.parameters)
    study.warm_start_from(warm_start_from, Path("runs"), storage)
    while len(study.trials) < n:
        proposal = study.asker.propose(build)
        assert proposal is not None
        proposal, hp, hparams = proposal
        study.persist({})
        number, value = study.accept(proposal, hp), scale * value_of(hparams)
        study.updates.report(number, 1, {"loss": value}, value)
        study.updates.finish(number, "complete")
    study.close()
    return [trial.hparams for trial in study.trials]


def distance(hparams: dict[str, Any]) -> float:
    return max(abs(math.log10(hparams["lr"]) + 2) / 5, abs(hparams["dropout"] - 0.8))


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
@pytest.mark.parametrize("build", [declare, more])
def test_first_trials_are_near_what_was_good(sampler, build):
    if sampler == "cmaes":
        pytest.importorskip("cmaes")
    search("old", 80)
    cold = search("cold", 20, build=build, sampler=sampler)
    warm = search("warm", 20, ("old",), build=build, sampler=sampler)
    # Uniform draws are 0.4 away in the median; the best of the earlier study 0.02.
    assert sorted(map(distance, warm))[10] < 0.7 * sorted(map(distance, cold))[10]


@pytest.mark.slow
def test_scales_of_the_objective_do_not_matter():
    search("old", 40)
    search("larger", 40, scale=1000.0)
    # The names have other lengths, so the seeds differ: the same trials are learnt by copying.
    shutil.copytree("runs/old", "runs/copied")
    assert search("one", 25, ("old",)) == search("two", 25, ("old",), scale=0.001)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_directions_may_differ(sampler):
    if sampler == "cmaes":
        pytest.importorskip("cmaes")
    # ``search`` takes seeds from the length of the name: those of each pair are the same.
    assert search("low", 40) == search("top", 40, scale=-1.0, direction="maximize")
    one, two = (
        search(new, 25, (old,), sampler=sampler) for new, old in (("a", "low"), ("b", "top"))
    )
    assert one == two


@pytest.mark.parametrize("storage", [None, "sqlite:///old.db"])
def test_the_same_command_again_says_nothing(storage):
    search("old", 12, storage=storage)
    named = "old" if storage is None else f"{storage}#old"
    for n in (3, 6):
        notes: list[str] = []
        search("new", n, (named,), notes=notes)
        assert len(notes) == (1 if n == 3 else 0)
    search("new", 7, ("sqlite:///x.db#another",), notes=notes)
    assert "keeps the earlier studies that it began with (old)" in notes[0]


@pytest.mark.slow
def test_a_worker_that_joins_takes_what_the_study_has_learnt():
    """Of two that open a study which is not there, the second to write finds it made."""
    search("old", 30)
    hp, opened = HyperParameters(), []
    declare(hp)
    for names in (("old",), ()):
        worker = Worker(None, lambda text: None, beats=False)
        study = Study("new", direction="minimize", sampler="tpe", seed=0, n_trials=4, worker=worker)
        study.metadata.space.learn(hp.parameters)
        study.warm_start_from(names, Path("runs"), None)
        opened.append(study)
    for study in opened:
        study.persist({})
    first, second = opened
    assert second.metadata.learnt == first.metadata.learnt != []
    told = second.proposer.sampled.told
    assert told is not None and [each.study for each in told.learnt] == ["old"]
    second.persist({"seed": 0})  # written again, it stays
    for study in opened:
        study.close()
    again = Study("new", seed=0, n_trials=4)
    assert [each["study"] for each in again.metadata.meta["learnt"]] == ["old"]
    again.close()


@pytest.mark.parametrize(
    "path", ["../old", "runs/../gone", "x" * 5000, "~nobody-here/old", "..", "C:\\old", "runs/old/"]
)
def test_a_path_that_leads_nowhere_is_an_error(path):
    with pytest.raises(
        UsageError, match=r"is not a study's folder, a journal or the name of a study"
    ):
        search("new", 1, (path,))
    assert not Path("runs").exists()


def test_a_file_that_is_called_as_a_study_does_not_hide_it():
    search("old", 2)
    Path("copy").write_bytes(Path("runs/old/journal.log").read_bytes())
    Path("old").write_text("notes")
    for each in ("old", "copy"):
        (learnt,) = read_earlier_studies((each,), Path("runs"), ("new", None))
        assert (learnt.study, len(learnt.trials)) == ("old", 2)


@pytest.mark.parametrize(
    "path", ["runs/s", "runs/../runs/s/journal.log", "link", "journal:link/journal.log"]
)
def test_the_study_itself_is_found_under_any_path(path):
    search("s", 2)
    Path("link").symlink_to("runs/s")
    with pytest.raises(UsageError, match="'s' is this search's own study"):
        read_earlier_studies((path,), Path("runs"), ("s", None))
    with pytest.raises(UsageError, match="'s' is this search's own study"):
        read_earlier_studies((path,), Path("elsewhere"), ("s", "journal:runs/s/journal.log"))
    # Another study of this name is not the same.
    assert len(read_earlier_studies((path,), Path("runs"), ("s", "journal:s.log"))) == 1


def test_a_damaged_journal_is_an_error_before_anything_is_written():
    search("old", 12)
    journal = Path("runs/old/journal.log")
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([*lines[:3], "{damaged}\n", *lines[4:]]))
    with pytest.raises(StorageError, match="old"):
        search("new", 1, ("old",))
    assert not Path("runs/new").exists()


def test_a_password_with_a_number_sign_is_not_shown():
    with pytest.raises(PacelineError, match="postgresql") as caught:
        search("new", 1, ("postgresql://me:sec#ret@nowhere.invalid/db",))
    assert "sec" not in str(caught.value) and "ret@" not in str(caught.value)


def test_nothing_learnt_counts_and_a_note_says_so():
    search("old", 30)
    notes: list[str] = []
    assert len(search("new", 12, ("old",), notes=notes)) == 12
    assert notes == [
        "warm-starting from 30 trials of study 'old', which do not count as trials of this study"
    ]
    study = optuna_study("new")
    assert len(study.trials) == 12
    assert [each["study"] for each in study.user_attrs["paceline"]["learnt"]] == ["old"]


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_a_study_that_goes_on_decides_the_same_without_the_earlier_one(sampler):
    if sampler == "cmaes":
        pytest.importorskip("cmaes")
    search("old", 30)
    whole = search("whole", 24, ("old",), sampler=sampler)
    search("parts", 9, ("old",), sampler=sampler)
    shutil.rmtree("runs/old")
    notes: list[str] = []
    assert search("parts", 24, sampler=sampler, notes=notes) == whole
    assert notes == []


def test_a_study_that_has_begun_keeps_what_it_learnt():
    search("old", 12)
    search("other", 12)
    search("s", 3)
    notes: list[str] = []
    plain = search("s", 6, ("old",), notes=notes)
    assert "study 's' keeps the earlier studies that it began with (none)" in notes[0]
    shutil.rmtree("runs/s")
    assert search("s", 6) == plain


@pytest.mark.parametrize("storage", [None, "sqlite:///old.db", "journal:elsewhere/old.log"])
def test_earlier_studies_are_only_read(storage, tmp_path):
    Path("elsewhere").mkdir()
    search("old", 15, storage=storage)
    place = {"journal:elsewhere/old.log": "elsewhere/old.log", None: "runs/old"}
    named = place.get(storage, f"{storage}#old")

    def files() -> dict[str, str]:
        there = [p for p in Path().rglob("*") if p.is_file() and "new" not in p.parts]
        return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in there}

    before = files()
    assert before
    search("new", 5, (named,))
    assert files() == before


def test_of_a_storage_of_several_studies_one_is_named():
    search("a", 12, storage="sqlite:///s.db")
    search("b", 12, storage="sqlite:///s.db")
    with pytest.raises(UsageError, match=r"has 2 studies \(a, b\)\. Name one, as in"):
        search("new", 1, ("sqlite:///s.db",))
    assert len(search("new", 2, ("sqlite:///s.db#b",))) == 2


def test_what_names_no_study_is_an_error_before_anything_is_written():
    with pytest.raises(UsageError, match="there is no study 'old' in"):
        search("new", 1, ("old",))
    search("own", 2)
    with pytest.raises(UsageError, match="'new' is this search's own study"):
        search("new", 1, ("new",))
    with pytest.raises(UsageError, match="there is no study 'old' in"):
        search("new", 1, ("own", "old"))
    assert not Path("runs/new").exists()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    optuna.create_study(storage="sqlite:///empty.db", study_name="empty")
    with pytest.raises(StudyError, match="'empty' has no complete trial"):
        search("new", 1, ("sqlite:///empty.db",))


@pytest.mark.parametrize("sampler", ["random", "qmc", "grid", "gp", optuna.samplers.TPESampler()])
def test_samplers_that_do_not_learn_are_refused(sampler):
    with pytest.raises(UsageError, match="cannot use earlier studies. Use tpe or cmae"):
        check_warm_start_from("old", sampler)
    assert check_warm_start_from(None, sampler) == ()


@pytest.mark.parametrize("wrong", [3, ["old", 3], {"old": 1}, "", " ", "a\nb", "a\0b"])
def test_the_argument_names_studies(wrong):
    with pytest.raises(UsageError, match="must be a study's name"):
        check_warm_start_from(wrong, "tpe")
    assert check_warm_start_from([Path("runs/a"), "b"], "tpe") == ("runs/a", "b")
