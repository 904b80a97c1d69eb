"""What ``build`` alone decides is not trained: constraints and ``hp.reject``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import optuna
import pytest

import paceline
import toys
from as_optuna import amounts, optuna_study
from marks import slow_where
from paceline.cli.app import main
from paceline.errors import BuildError, ConstraintError, TrialRejected, UsageError
from paceline.tuner.arguments.constraints import REJECTED_IN_A_ROW, Constraints, parse_constraint
from paceline.tuner.search import events as trial_events
from stopping import hears_signals, stopped_after, trials_of  # noqa: F401 - a fixture
from toys import n_params, wide

TESTS = Path(__file__).resolve().parents[1]
X, Y = toys.data()
CALL: dict[str, Any] = {**toys.CALL, "epochs": 2}


def tuner(build: Any = wide, **arguments: Any) -> paceline.Tuner:
    given = {"study": "s", "sampler": "random", "parallel_trials": 2, "on_note": lambda text: None}
    return paceline.Tuner(build, **{**given, **arguments})


def stored() -> list[optuna.trial.FrozenTrial]:
    """Its trials."""
    return optuna_study().trials


# -- searches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampler", slow_where(["random", "qmc", "tpe", "grid"], lambda name: name != "tpe")
)
def test_what_violates_a_bound_is_not_trained_and_does_not_count(sampler: str) -> None:
    def build(hp: Any) -> keras.Model:
        hp.Choice("unused", ["a", "b"])
        return wide(hp)

    found = tuner(build, sampler=sampler, constraints={"params": ("<=", n_params(4))})
    found.search(X, Y, n_trials=6, **CALL)
    trials = trials_of(found)
    assert sum(trial.state == "complete" for trial in trials) == 6
    assert {trial.state for trial in trials} <= {"complete", "rejected"}
    for trial, frozen in zip(trials, stored(), strict=True):
        params = n_params(trial.hparams["units"])
        over = params - n_params(4)
        # The truth beside it: the amount is positive where the bound is violated, and only there.
        assert amounts(frozen) == [over]
        assert (trial.state == "rejected") == (over > 0) == (trial.epochs == 0)
        assert frozen.state.name == ("PRUNED" if over > 0 else "COMPLETE")
        if over > 0:
            assert trial.rejected == f"params {params:,} > {n_params(4):,}"
            assert trial.error is None
    assert found.best_model().count_params() <= n_params(4)


def test_rejected_trials_are_told_of(capsys) -> None:
    found = paceline.Tuner(wide, study="s", sampler="random", constraints={"params": ("<", 54)})
    found.search(X, Y, n_trials=4, **CALL)
    n = sum(found.results()["state"] == "rejected")
    assert n > 0
    said = capsys.readouterr().out
    assert "s: 4 trials (4 complete)" in said
    assert f"{n} rejected before training: params " in said
    assert " >= 54" in said
    assert sum(found.summary()["rejected"].values()) == n
    assert set(found.results()["state"]) == {"complete", "rejected"}
    with pytest.raises(SystemExit, match="^0$"):
        main(["trials", "s"])
    shown = capsys.readouterr().out
    assert f"{n} rejected: params " in shown
    assert "failed" not in shown
    page = Path(found.report()).read_text()
    assert "Rejected before training" in page
    assert f"{n} rejected" in page


def test_hp_reject_in_build_is_no_failure() -> None:
    def build(hp: Any) -> keras.Model:
        if hp.Int("depth", 1, 8) > 4:
            hp.reject("too deep")
        return toys.softmax_at(hp.Float("lr", 1e-3, 1e-1))

    found = tuner(build, sampler="tpe")
    found.search(X, Y, n_trials=6, **CALL)
    for number, frozen in enumerate(stored()):
        trial = found.trial(number)
        deep = trial.hparams["depth"] > 4
        assert trial.state == ("rejected" if deep else "complete")
        assert trial.rejected == ("too deep" if deep else None)
        assert not deep or amounts(frozen) == [1.0]
    assert sum(found.results()["state"] == "complete") == 6


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda model, hparams: hparams["units"] <= 4, "small is not satisfied"),
        pytest.param(
            lambda model, hparams: np.bool_(hparams["units"] <= 4),
            "small is not satisfied",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda model, hparams: model.count_params() - n_params(4),
            "small is ",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_function_may_decide(function: Any, why: str) -> None:
    found = tuner(constraints={"small": function})
    found.search(X, Y, n_trials=4, **CALL)
    trials = trials_of(found)
    assert sum(trial.state == "complete" for trial in trials) == 4
    for trial in trials:
        assert (trial.state == "rejected") == (trial.hparams["units"] > 4)
        assert trial.rejected is None or trial.rejected.startswith(why)


@pytest.mark.slow
def test_in_fit_and_with_several_constraints() -> None:
    bounds = {"params": [(">=", n_params(3)), ("<=", n_params(5))], "trainable_params": (">", 0)}
    found = tuner(executor="fit", constraints=bounds)
    found.search(X, Y, n_trials=3, **CALL)
    units = {t.hparams["units"] for t in trials_of(found) if t.epochs}
    assert units <= {3, 4, 5}
    assert sum(found.results()["state"] == "complete") == 3
    assert found.results()["plan"].dropna().unique().tolist() == ["fit"]


@pytest.mark.slow
def test_conditional_spaces() -> None:
    def build(hp: Any) -> keras.Model:
        kind = hp.Choice("kind", ["narrow", "wide"])
        with hp.conditional_scope("kind", ["wide"]):
            extra = hp.Int("extra", 1, 6)
        layers = [keras.Input((toys.FEATURES,))]
        if kind == "wide":
            layers.append(keras.layers.Dense(extra))
        layers.append(keras.layers.Dense(toys.CLASSES, activation="softmax"))
        return toys.compiled(keras.Sequential(layers), hp.Float("lr", 1e-3, 1e-1))

    found = tuner(build, sampler="tpe", constraints={"params": ("<=", n_params(3))})
    found.search(X, Y, n_trials=8, **CALL)
    for trial in trials_of(found):
        assert (trial.state == "rejected") == (trial.hparams.get("extra", 0) > 3)


@pytest.mark.slow
def test_a_model_without_an_input_is_counted_and_trains_as_without_constraints() -> None:
    def build(hp: Any) -> keras.Model:
        layers = [
            keras.layers.Dense(hp.Int("units", 2, 8), activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(toys.CLASSES, activation="softmax"),
        ]
        return toys.compiled(keras.Sequential(layers))

    found = tuner(build, sampler="grid", constraints={"params": ("<=", n_params(4))})
    found.search(X, Y, n_trials=7, **CALL)
    plain = tuner(build, study="plain", sampler="grid")
    plain.search(X, Y, n_trials=3, **CALL)
    assert found.results()["state"].tolist() == ["complete"] * 3 + ["rejected"] * 4
    for number in range(3):
        assert found.history(number)["loss"][0] == pytest.approx(plain.history(number)["loss"][0])


def test_enqueued_values_are_rejected_with_a_note() -> None:
    notes: list[str] = []
    found = tuner(constraints={"params": ("<=", n_params(4))}, on_note=notes.append)
    found.enqueue({"units": 8, "lr": 0.01})
    found.search(X, Y, n_trials=2, **CALL)
    assert found.trial(0).state == "rejected"
    assert f"the enqueued trial 0 is rejected: params {n_params(8)} > " in "".join(notes)


@pytest.mark.slow
def test_a_trial_of_another_program_may_be_rejected() -> None:
    bound = {"params": ("<=", n_params(4))}
    tuner(constraints=bound).search(X, Y, n_trials=1, **CALL)
    n = len(stored())
    optuna_study().enqueue_trial({"units": 8, "lr": 0.01})
    found = tuner(constraints=bound)
    found.search(X, Y, n_trials="+1", **CALL)
    trial = stored()[n]
    assert trial.state.name == "PRUNED"
    assert amounts(trial) == [n_params(8) - n_params(4)]
    assert found.trial(n).state == "rejected"


# -- spaces of which next to nothing is allowed ----------------------------------------------------


def test_many_rejections_in_a_row_end_the_search() -> None:
    found = tuner(constraints={"params": ("<=", 10)})
    text = (
        r"constraints: 100 configurations in a row were rejected before training, one after the "
        r"other: 100 by params \d+ > 10 \(the last one\)\. Loosen the constraint, or declare"
    )
    with pytest.raises(ConstraintError, match=text):
        found.search(X, Y, n_trials=4, **CALL)
    assert set(found.results()["state"]) == {"rejected"}


def test_a_space_that_is_rejected_to_its_end(monkeypatch) -> None:
    monkeypatch.setattr(trial_events, "REJECTED_IN_A_ROW", 2)  # a grid has no such limit

    def build(hp: Any) -> keras.Model:
        hp.Choice("a", [1, 2, 3])
        return toys.softmax()

    found = tuner(build, sampler="grid", constraints={"params": ("<=", 10)})
    with pytest.raises(ConstraintError, match="3 configurations .* every configuration of the sp"):
        found.search(X, Y, n_trials=4, **CALL)


def test_a_grid_goes_on_behind_any_number_of_rejections() -> None:
    def build(hp: Any) -> keras.Model:
        early = hp.Choice("early", [True, False])  # the first half of the grid
        hp.Choice("other", list(range(REJECTED_IN_A_ROW + 1)))
        if early:
            hp.reject("too early")
        return toys.softmax()

    found = tuner(build, sampler="grid")
    found.search(X, Y, n_trials=2, **CALL)
    states = list(found.results().sort_values("number")["state"])
    assert states == ["rejected"] * (REJECTED_IN_A_ROW + 1) + ["complete"] * 2


def test_a_build_that_rejects_everything_ends_before_anything_is_written() -> None:
    def build(hp: Any) -> None:
        hp.Float("lr", 1e-3, 1e-1)
        hp.reject("never")

    with pytest.raises(ConstraintError, match="100 configurations in a row.*: 100 by never"):
        tuner(build).search(X, Y, n_trials=4, **CALL)
    assert not Path("runs/s/journal.log").exists()


@pytest.mark.slow
def test_defaults_that_are_rejected_are_no_hindrance() -> None:
    def build(hp: Any) -> keras.Model:
        if hp.Int("units", 1, 8) < 3:
            hp.reject("too narrow")
        return wide(paceline.HyperParameters(values={"units": hp.get("units"), "lr": 0.01}))

    found = tuner(build)
    found.search(X, Y, n_trials=3, **CALL)
    assert sum(found.results()["state"] == "complete") == 3


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (7, r"constraints must be .* got 7"),
        ({"parms": ("<=", 10)}, r"constraints: 'parms' is unknown. Use params or trainable"),
        (
            {"params": ("=<", 10)},
            r"constraints: the operator of 'params' must be one of <=, <.* got '=<'",
        ),
        (
            {"params": ("<=", "10")},
            r"constraints: the bound of 'params' must be a number, such as.* got '10'",
        ),
        (
            {"params": ("<=", float("nan"))},
            r"constraints: the bound of 'params' must be a number, such as.* got nan",
        ),
        (
            {"params": ("<=", True)},
            r"constraints: the bound of 'params' must be a number, such as.* got True",
        ),
        (
            {"params": 10},
            r"constraints: 'params' must have an operator and a number, such.* got 10",
        ),
        ({"params": lambda model, hparams: True}, r"'params' is a count of the model, so it needs"),
        ({1: ("<=", 10)}, r"constraints: names must be text.* got 1"),
    ],
)
def test_bad_constraints(given: Any, text: str) -> None:
    with pytest.raises(ConstraintError, match=text):
        tuner(constraints=given)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda model, hparams: 1 / 0, r"odd\(model, hparams\) raised ZeroDivisionError: division"),
        (lambda model, hparams: None, r"odd\(model, hparams\) must return True.* got None"),
        (lambda model, hparams: float("nan"), r"odd\(model, hparams\) must return True.* got nan"),
    ],
)
def test_a_function_that_cannot_tell_ends_the_search_before_it_trains(
    function: Any, text: str
) -> None:
    with pytest.raises(ConstraintError, match=text):
        tuner(constraints={"odd": function}).search(X, Y, n_trials=4, **CALL)
    assert not Path("runs/s/journal.log").exists()


def test_a_function_that_raises_later_fails_its_trials_alone() -> None:
    def odd(model: Any, hparams: dict[str, Any]) -> bool:
        return 1 / (hparams["units"] - 5) < 2

    found = tuner(constraints=odd, sampler="grid")
    found.search(X, Y, n_trials=4, **CALL)
    for trial in trials_of(found):
        assert (trial.state == "failed") == (trial.hparams["units"] == 5)


def test_a_searcher_decides_by_itself() -> None:
    from paceline.study.samplers.samplers import Searcher

    own = type("Own", (Searcher,), dict.fromkeys(Searcher.__abstractmethods__))
    with pytest.raises(UsageError, match="constraints: a Searcher chooses trials by itself"):
        tuner(sampler=own(), constraints={"params": ("<=", 10)})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("params<=200000", ("params", ("<=", 200000))),
        (" params < 2e5 ", ("params", ("<", 200000))),
        ("trainable_params>=1_000", ("trainable_params", (">=", 1000))),
    ],
)
def test_constraints_of_the_command_line(text: str, found: Any) -> None:
    assert parse_constraint(text) == found


@pytest.mark.parametrize("text", ["params", "params=10", "params<=ten", "params<=", "a b<=1", ""])
def test_bad_constraints_of_the_command_line(text: str) -> None:
    with pytest.raises(ConstraintError, match=r"--constraint .*params<=200000'"):
        parse_constraint(text)


@pytest.mark.parametrize(
    ("operator", "limit", "allowed"),
    [
        ("<=", 30, {28, 29, 30}),
        ("<", 30, {28, 29}),
        ("<", 30.5, {28, 29, 30}),
        ("<=", 29.5, {28, 29}),
        (">=", 30, {30, 31, 32}),
        (">", 30, {31, 32}),
        (">", 29.5, {30, 31, 32}),
    ],
)
def test_operators(operator: str, limit: float, allowed: set[int]) -> None:
    class Model:
        trainable_weights = ()

        def __init__(self, n: int) -> None:
            self.weights = [np.zeros(n)]

    bound = Constraints({"params": (operator, limit)})
    for n in range(28, 33):
        if n in allowed:
            assert max(bound.check(Model(n), {}).values()) <= 0
        else:
            with pytest.raises(TrialRejected, match=f"params {n} ") as caught:
                bound.check(Model(n), {})
            assert min(caught.value.amounts.values()) > 0


# -- going on --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("sampler", slow_where(["random", "tpe"], lambda name: name == "random"))
def test_a_search_that_stops_goes_on_as_if_it_had_not(sampler: str, monkeypatch) -> None:
    bound = {"params": ("<=", n_params(5))}
    with monkeypatch.context() as patch:
        stopped_after(patch, 3)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            tuner(sampler=sampler, constraints=bound).search(X, Y, n_trials=14, **CALL)
    again = tuner(sampler=sampler, constraints=bound)
    again.search(X, Y, n_trials=14, **CALL)
    whole = tuner(study="whole", sampler=sampler, constraints=bound)
    whole.search(X, Y, n_trials=14, **CALL)
    columns = ["number", "state", "units", "lr", "value"]
    assert again.results()[columns].equals(whole.results()[columns])
    assert "rejected" in set(whole.results()["state"])


@pytest.mark.slow
def test_other_constraints_are_noted_and_stored() -> None:
    notes: list[str] = []
    tuner(constraints={"params": ("<=", n_params(5))}).search(X, Y, n_trials=3, **CALL)
    again = tuner(constraints={"params": [("<", 50), (">", 5)]}, on_note=notes.append)
    again.search(X, Y, n_trials="+3", **CALL)
    assert (
        "new trials must satisfy params < 50 and params > 5, earlier ones of study 's' had to "
        f"satisfy params <= {n_params(5)}. Rejected configurations are not tried again"
    ) in "".join(notes)
    assert sum(again.results()["state"] == "complete") == 6
    notes.clear()
    tuner(on_note=notes.append).search(X, Y, n_trials="+1", **CALL)
    assert "new trials must satisfy no constraints" in "".join(notes)


#: A search that is killed when it has ended so many trials.
KILLED = """\
import os, signal, sys
sys.path[:0] = [{tests!r}, {here!r}]
import test_constraints as t
from paceline.study.ask_tell import TrialUpdates

finish, left = TrialUpdates.finish, [int(sys.argv[1])]

def killing(self, number, state, **more):
    left[0] -= 1
    if left[0] < 0:
        self._writer.flush()  # a trial that has begun is in the storage, its end is not
        os.kill(os.getpid(), signal.SIGKILL)
    return finish(self, number, state, **more)

TrialUpdates.finish = killing
bound = {{"params": ("<=", t.n_params(5))}}
t.tuner(sampler="tpe", constraints=bound).search(t.X, t.Y, n_trials=10, **t.CALL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", slow_where([0, 1, 4], lambda after: after != 1))
def test_kill_9(after: int, child_environment) -> None:
    """Also between the beginning of a rejected trial and its end."""
    script = KILLED.format(tests=str(TESTS), here=str(Path(__file__).parent))
    done = subprocess.run(
        [sys.executable, "-c", script, str(after)],
        env=child_environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == -9, done.stderr
    found = tuner(sampler="tpe", constraints={"params": ("<=", n_params(5))})
    found.search(X, Y, n_trials=10, **CALL)
    results = found.results()
    assert sum(results["state"] == "complete") == 10
    for trial in map(found.trial, results["number"]):
        if trial.error == "interrupted":
            continue
        assert (trial.state == "rejected") == (trial.hparams["units"] > 5)
    again = {json.dumps(t.hparams) for t in map(found.trial, results["number"])}
    interrupted = sum(results.get("error", results["state"]) == "interrupted")
    assert len(again) == len(results) - interrupted  # nothing was tried twice


#: One of several processes that search the study.
WORKER = """\
import sys, time
from pathlib import Path
sys.path[:0] = [{tests!r}, {here!r}]
import test_constraints as t

Path("ready-" + sys.argv[1]).touch()
while len(list(Path().glob("ready-*"))) < 2:
    time.sleep(0.01)
bound = {{"params": ("<=", t.n_params(5))}}
# They dawdle after each epoch, for neither to have trained all before the other is ready.
found = t.tuner(sampler="tpe", constraints=bound, on_progress=lambda _: time.sleep(0.5))
found.search(t.X, t.Y, n_trials=12, **t.CALL)
"""


@pytest.mark.slow
def test_two_workers(child_environment) -> None:
    """They train as many trials as were asked for, and count none that was rejected."""
    script = WORKER.format(tests=str(TESTS), here=str(Path(__file__).parent))
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(number)],
            env=child_environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    for worker in workers:
        said = worker.communicate(timeout=240)[1]
        assert worker.returncode == 0, said
    trials = [t for t in stored() if "paceline:withdrawn" not in t.system_attrs]
    owners = {trial.system_attrs["paceline:owner"] for trial in trials}
    assert len(owners) == 2
    assert sum(trial.state.name == "COMPLETE" for trial in trials) == 12
    for trial in trials:
        over = n_params(trial.params["units"]) - n_params(5)
        assert amounts(trial) == [over]
        assert trial.state.name == ("PRUNED" if over > 0 else "COMPLETE")


# -- the command -----------------------------------------------------------------------------------

MODEL = """\
import sys
sys.path[:0] = [{tests!r}, {here!r}]
import toys
from test_constraints import wide as build

def data():
    return toys.data(), toys.data(23, seed=1)
"""


def write_model(more: str = "") -> None:
    here = str(Path(__file__).parent)
    Path("model.py").write_text(MODEL.format(tests=str(TESTS), here=here) + more)


SEARCH = ["search", "model.py", "--epochs", "1", "--sampler", "grid", "--quiet", "--study", "s"]


def run(*words: str, code: int = 0) -> None:
    with pytest.raises(SystemExit, match=f"^{code}$"):
        main(list(words))


@pytest.mark.slow
def test_the_command_takes_constraints_and_resume_keeps_them(capsys) -> None:
    write_model("\nconstraints = {'params': ('<=', 5)}\n")  # the option goes before
    run(*SEARCH, "--trials", "2", "--constraint", f"params<={n_params(4)}", "--constraint",
        f"params>{n_params(2)}", "--json")  # fmt: skip
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["n_trials"] == {"complete": 2, "pruned": 0, "failed": 0, "running": 0}
    assert sum(summary["rejected"].values()) >= 1
    run("resume", "s", "--trials", "+1", "--quiet")
    run("trials", "s", "--json")
    trials = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert sum(trial["state"] == "complete" for trial in trials) == 3
    for trial in trials:
        allowed = n_params(2) < n_params(trial["hparams"]["units"]) <= n_params(4)
        assert trial["state"] == ("complete" if allowed else "rejected")
        assert allowed or trial["reason"].startswith("params ")
    run("trials", "s", "--where", "state=rejected", "--csv")
    assert len(capsys.readouterr().out.splitlines()) == 1 + sum(
        trial["state"] == "rejected" for trial in trials
    )
    run("list")
    assert "rejected" in capsys.readouterr().out


@pytest.mark.slow
def test_the_file_may_have_constraints(capsys) -> None:
    write_model("\ndef constraints(model, hparams):\n    return hparams['units'] != 2\n")
    run(*SEARCH, "--trials", "1")
    assert "rejected before training: constraints is not satisfied" in capsys.readouterr().out
    run("resume", "s", "--trials", "+1", "--quiet")


@pytest.mark.slow
def test_the_example_of_the_guide(capsys) -> None:
    page = (TESTS.parent / "docs/guides/constraints.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    found: dict[str, Any] = {}
    exec(code, found)
    results = found["results"]
    assert sum(results["state"] == "complete") == 12
    assert set(results["state"]) == {"complete", "rejected"}
    assert found["tuner"].best_model().count_params() <= 50_000
    assert "params " in capsys.readouterr().out


def test_hp_reject_by_hand() -> None:
    with pytest.raises(TrialRejected, match="^too deep$") as caught:
        paceline.HyperParameters().reject("too deep")
    assert isinstance(caught.value, paceline.PacelineError)
    assert not isinstance(caught.value, BuildError)


# -- of a sampler ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::FutureWarning")  # Optuna 5 has another way, in objectives
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_the_best_model_is_one_that_keeps_what_the_sampler_evaluates(make) -> None:
    def slow(trial: optuna.trial.FrozenTrial) -> list[float]:
        return [trial.params["lr"] - 0.01]

    found = make(sampler=optuna.samplers.TPESampler(seed=0, constraints_func=slow), keep_best=1)
    found.search(X, Y, n_trials=6, **CALL)
    best = found.best_trial
    assert best.hparams["lr"] <= 0.01
    values = [found.trial(number).value for number in range(6)]
    assert max(values) > best.value  # of a trial that violates it
    metrics = found.best_model().evaluate(*CALL["validation_data"], verbose=0, return_dict=True)
    assert metrics["accuracy"] == pytest.approx(best.value, abs=1e-6)  # one mean in two orders
    assert found.optuna_study().best_trial.number == best.number
