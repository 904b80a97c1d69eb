"""What functions share comes out as if they had run one after the other."""

from __future__ import annotations

import copy
import gc
import heapq
import os
import threading
import time
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple

import keras
import numpy as np
import pytest

from compat.interception import sharing
from compat.interception.alone import alone, assert_same
from compat.interception.functions import FUNCTIONS, network
from compat.interception.sharing import HARMLESS, IN_ORDER, MAKERS, fit
from marks import slow_where
from paceline.compat.interception import Engine, FunctionCall
from paceline.compat.interception.sharing.claims import paths
from paceline.compat.interception.sharing.hazards import (
    constant_paths,
    needs_a_first_look,
    why_in_order,
    why_one_at_a_time,
)
from paceline.errors import UsageError
from paceline.pack.callbacks.changes import written_attributes
from paceline.pack.callbacks.reachable import reached

N = 3
#: Those of each kind that `make test` runs; the others: `make test-slow`.
QUICK = {
    "model_made_outside",
}


def together(make, **engine):
    """What functions return, in order, and the notes."""
    keras.utils.set_random_seed(9)  # for what is made outside
    function, notes = make(), []
    with Engine(notes=notes.append, **engine) as made:
        calls = [FunctionCall(i, partial(function, i), i) for i in range(N)]
        outcomes = {outcome.number: outcome for outcome in made.run(calls)}
    assert [outcomes[i].error for i in range(N)] == [None] * N
    return [outcomes[i].value for i in range(N)], notes


def shown(found):
    """What the code shows of what functions share."""
    return why_one_at_a_time(found) or why_in_order(found)[0]


def one_after_the_other(make):
    keras.utils.set_random_seed(9)
    function = make()
    return [alone(partial(function, i), i) for i in range(N)]


@pytest.mark.parametrize("name", slow_where(MAKERS, lambda name: name not in QUICK))
def test_what_is_shared_comes_out_as_one_after_the_other(name):
    found, notes = together(MAKERS[name])
    note = notes[0]
    assert note.startswith("functions run one at a time, in order: ")
    assert note.endswith(
        "Create one in each function, or pass concurrent=True to train them together anyway"
    )
    for got, want in zip(found, one_after_the_other(MAKERS[name]), strict=True):
        assert_same(got, want)


@pytest.mark.parametrize(
    "name", slow_where(IN_ORDER, lambda name: name != "best_model_that_is_kept")
)
def test_what_is_touched_after_fits_is_touched_in_order(name, in_new_folders):
    """They train together, and each waits for those before it where it touches what they share."""
    found, notes = in_new_folders(lambda: together(IN_ORDER[name]))
    assert notes == []
    alone = in_new_folders(lambda: one_after_the_other(IN_ORDER[name]))
    for got, want in zip(found, alone, strict=True):
        assert_same(got, want)


@pytest.fixture
def in_new_folders(tmp_path, monkeypatch):
    def called(function):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        monkeypatch.chdir(folder)
        return function()

    return called


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_where(HARMLESS, lambda name: not name.startswith("layer")))
def test_what_may_be_shared_trains_together(name):
    found, notes = together(HARMLESS[name])
    assert notes == []
    for got, want in zip(found, one_after_the_other(HARMLESS[name]), strict=True):
        assert_same(got, want)


# -- what is said, and what decides ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("callback_made_outside", "they share the EarlyStopping 'stop', which is made outside"),
        ("optimizer_made_outside", "they share the Adam 'optimizer', which is made outside"),
        ("global_bound_before_and_read_after", r"function\(\) changes 'LATEST', which is made out"),
        ("outer_variable_bound_after", r"function\(\) changes 'best'"),
        ("list_that_grows_after", r"function\(\) changes 'losses'"),
        ("dict_written_in_a_callback", r"function\(\) changes 'logs'"),
        ("attribute_of_an_object", r"Store.keep\(\) changes 'self.latest'"),
        ("numbers_drawn_from_one_generator", "they share 'rng', a Generator, which every use"),
        ("counted", "they share 'numbers', a count, which every use changes"),
        ("weights_saved_before_and_loaded_after", "writes 'fixed.weights.h5', a path that is the"),
    ],
)
def test_code_shows_what_is_shared(name, why):
    found = shown(reached({"function": {**MAKERS, **IN_ORDER}[name]()}))
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(found)


@pytest.mark.parametrize("name", [*HARMLESS, "model_made_outside", "callback_in_a_cache"])
def test_code_shows_nothing(name):
    made = {**HARMLESS, **MAKERS}[name]()
    assert shown(reached({"function": made})) is None


def test_ordinary_functions_share_nothing():
    for name, function in FUNCTIONS.items():
        assert shown(reached({name: function})) is None, name


class Tracker:
    """Counts, if it is asked to."""

    def __init__(self):
        self.count = 0

    def up(self):
        self.count += 1

    def double(self, number):
        return 2 * number


def test_only_the_methods_that_are_called_count():
    tracker = Tracker()

    def reads():
        return tracker.double(2)

    def writes():
        tracker.up()

    def makes():
        own = Tracker()
        own.up()

    assert shown(reached({"reads": reads})) is None
    assert shown(reached({"makes": makes})) is None
    assert "Tracker.up() changes 'self.count'" in shown(reached({"writes": writes}))
    assert "changes 'self.count'" in shown(reached({"tracker": tracker}, ["up"]))


def test_names_are_followed_through_modules_and_classes():
    def through_a_module():
        sharing.SETTINGS["epochs"] = 3

    class Log(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            sharing.MAKERS.pop("none", None)

    def through_a_class():
        return fit(network(), callbacks=[Log()])

    found = shown(reached({"function": through_a_module}))
    assert found == "through_a_module() changes 'sharing', which is made outside of it"
    found = shown(reached({"function": through_a_class}))
    assert found == "Log.on_epoch_end() changes 'sharing', which is made outside of it"


def test_every_use_of_what_changes_must_come_after_a_fit():
    def reads_before(i):
        return sharing.LATEST, sharing.keeps_latest(i)

    def looks_up(i):
        return getattr(sharing, "LATEST"), sharing.keeps_latest(i)  # noqa: B009

    def any_name(i):
        return len(vars()), sharing.keeps_latest(i)

    why, gates = why_in_order(reached({"function": sharing.keeps_latest}))
    code = sharing.keeps_latest.__code__
    assert why and gates == {code: {code.co_firstlineno + 3, code.co_firstlineno + 4}}
    for function in (reads_before, looks_up, any_name):
        assert why_in_order(reached({"function": function})) == (why, None)


def keeping(before, *, losses):
    """A function that changes a list after its fit, and does something else before."""

    def function(i):
        seen = before(i)
        fit(network(i), epochs=3 - i)
        losses.append(i)
        return seen

    return function


class Study:
    """Keeps losses, and is used before a fit."""

    def __init__(self, before=lambda study: None):
        self.losses = []
        self.before = before

    def __call__(self, i):
        self.before(self)
        fit(network(i))
        self.losses.append(i)


def copies(study):
    return copy.deepcopy(study)


def imports(i):
    from compat.interception import sharing

    return sharing


def test_a_list_of_one_name_has_gates():
    assert why_in_order(reached({"function": keeping(network, losses=[])}))[1]


def ways_to_a_list():
    losses, holder, array = [], Study(), np.zeros(1)
    table, sums, held = {"holder": holder, "sums": array}, array, {"losses": losses}
    holder.alias = losses

    class Keeps(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            losses.append(epoch)

    class Class:
        alias = losses

    def bound_again(i):
        nonlocal losses
        n = len(held["losses"])
        fit(network(i))
        losses += [n]

    def within_an_object(i):
        n = len(holder.losses)
        fit(network(i))
        table["holder"].losses.append(n)

    def array_in_a_dict(i):
        n = sums[0]
        fit(network(i))
        table["sums"][0] += n

    def in_a_thread(i):
        threading.Thread(target=fit, args=(network(i),)).start()

    keeps = keeping(network, losses=losses)

    class Trains(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            keeps(0)

    @contextmanager
    def wrapped():
        yield losses.append(1)

    return {
        "callback": keeping(lambda i: Keeps(), losses=losses),
        "callback that trains": lambda i: fit(network(i), callbacks=[Trains()]),
        "lambda that trains": lambda i: fit(network(i), callbacks=[lambda: keeps(i)]),
        "function that is handed on": lambda i: fit(network(i), callbacks=[keeps]),
        "attribute": keeping(lambda i: len(holder.alias), losses=losses),
        "attribute of a class": keeping(lambda i: len(Class.alias), losses=losses),
        "list in a dict": keeping(lambda i: len(held["losses"]), losses=losses),
        "partial": keeping(partial(len, losses), losses=losses),
        "module that is imported": keeping(imports, losses=losses),
        "thread": keeping(in_a_thread, losses=losses),
        "helper that a library wraps": keeping(lambda i: wrapped(), losses=losses),
        "bound again": bound_again,
        "object in a dict": within_an_object,
        "array in a dict": array_in_a_dict,
        "copy of the object": Study(copies),
    }


@pytest.mark.parametrize("way", ways_to_a_list())
def test_another_way_to_what_changes_leaves_no_gates(way):
    why, gates = why_in_order(reached({"function": ways_to_a_list()[way]}))
    assert why is not None and gates is None


@pytest.mark.parametrize(
    "before", ["len(list(OUT.rglob('*')))", "os.path.getsize('./out/a.txt')", "listed('out')"]
)
def test_files_that_are_looked_at_before_a_fit_leave_no_gates(before, tmp_path):
    file = tmp_path / "users.py"
    file.write_text(
        f"def function(i):\n    seen = {before}\n    fit(network(i))\n"
        "    open('out/a.txt', 'a').write('x')\n    return seen\n"
    )
    names = {"OUT": Path("out"), "os": os, "fit": fit, "network": network, "listed": os.listdir}
    exec(compile(file.read_text(), str(file), "exec"), names)
    assert why_in_order(reached({"function": names["function"]}))[1] is None


def test_a_gate_before_the_first_fit_is_said():
    best = []

    def function(i):
        if i < 0:
            fit(network(i))
        seen = len(best)
        fit(network(i))
        best.append(i)
        return seen

    found, notes = together(lambda: function)
    assert found == [0, 1, 2]
    assert len(notes) == 1 and "one at a time, in order: function() changes 'best'" in notes[0]


def test_changes_that_no_code_shows_are_found_before_a_gate():
    """Until then nothing says that ``top`` is changed: no method of its own does it."""
    top, names = [], []

    def function(i):
        seen = len(top)
        heapq.heappush(top, fit(network(i)).history["loss"][-1])
        names.append(i)
        return seen

    _, notes = together(lambda: function)
    assert len(notes) == 1
    assert "one of them changed 'top', which is made outside of it, while other fun" in notes[0]


def test_paths_of_trials_own_folders_are_no_clocks():
    """The clock names the folder of a tuner's trials once, in the script."""

    class Keeps(keras.callbacks.CSVLogger):
        __module__ = "paceline.own"

    def function(i):
        started = datetime.now()
        fit(network(i), callbacks=[Keeps(f"{started:%Y%m%d-%H%M}-{i}.csv")])

    _, notes = together(lambda: function)
    assert len(notes) == 1 and "reads the clock" in notes[0]


def test_default_values_and_attributes_of_classes_are_shared():
    def with_a_default(i, log=[], *, more=None):  # noqa: B006 - what users write
        log.append(i)

    class Counts:
        n = 0

        def __init__(self):
            self.__class__.n += 1

        @classmethod
        def up(cls):
            cls.n += 1

    def makes():
        return Counts()

    def calls():
        Counts.up()

    def changes(function):
        return shown(reached({"function": function})).removesuffix(", which is made outside of it")

    assert changes(with_a_default) == "with_a_default() changes 'log', a default value"
    assert changes(makes) == "Counts.__init__() changes 'self.__class__.n'"
    assert changes(calls) in (
        "Counts.__init__() changes 'self.__class__.n'",
        "Counts.up() changes 'cls.n'",
    )


def test_trackers_have_one_run_at_a_time():
    wandb = ModuleType("wandb")
    start_run = FunctionType((lambda: None).__code__, {"__name__": "mlflow.tracking"})

    def logs():
        wandb.init()

    def starts():
        start_run()

    uses = "() uses {}, which can log one run at a time"
    assert shown(reached({"f": logs})) == "logs" + uses.format("wandb")
    assert shown(reached({"f": starts})) == "starts" + uses.format("mlflow")


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("open('log.txt', 'a').write('x')", "log.txt"),
        ("open('log.txt').read()", None),
        ("open('data.npz', 'rb')", None),
        ("name = 'a.keras'; model.save(name)", "a.keras"),
        ("model.save(os.path.join('models', 'a.keras'))", os.path.join("models", "a.keras")),
        ("model.save(os.path.join(folder, 'a.keras'))", None),
        ("model.save(f'{i}.keras')", None),
        ("model.load_weights('pretrained.weights.h5')", None),
        ("Path('out.txt').write_text('x')", "out.txt"),
        ("shutil.rmtree('logs')", "logs"),
        ("names.remove('a')", None),
    ],
)
def test_paths_that_are_the_same_each_time(source, path, tmp_path):
    file = tmp_path / "users.py"
    file.write_text(f"def function(model, folder, i, names, os, shutil, Path):\n    {source}\n")
    names = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    found = shown(reached({"function": names["function"]}))
    expected = path and f"function() writes {path!r}, a path that is the same each time"
    assert found == expected


def test_functions_without_source_are_watched():
    names = {"log": [], "fit": fit, "network": network}
    source = (
        "def function(i):\n    fit(network(i), epochs=3 - i)\n    log.append(i)\n    return [*log]"
    )
    exec(source, names)
    found, notes = together(lambda: names["function"])
    assert found == [[0], [0, 1], [0, 1, 2]]
    assert "one of them changed 'log', which is made outside of it" in notes[0]


@dataclass(frozen=True, order=True)
class Frozen:
    rate: float = 0.1


@dataclass
class Plain:
    rate: float = 0.1


class Pair(NamedTuple):
    rate: float = 0.1


@dataclass(eq=False)
class Keeping:
    kept: list[float]

    def keep(self, into: list[float]) -> None:
        into.append(1.0)


@pytest.mark.parametrize(
    ("settings", "looks"),
    [(Frozen(), False), (Plain(), False), (Pair(), False), (Keeping([]), True)],
)
def test_methods_that_dataclasses_have_written_need_no_look(settings, looks):
    def function(i):
        return settings, Frozen(i), Pair(i), settings.keep if i < 0 else None

    assert needs_a_first_look(reached({"function": function})) is looks


def test_what_sets_an_attribute_of_its_argument_needs_a_look():
    best = Plain()

    def keeps(one, i):
        one.rate = i

    def freezes(model):
        model.trainable = False

    assert needs_a_first_look(reached({"function": lambda i: keeps(best, i)}))
    assert not needs_a_first_look(reached({"function": lambda i: (best, freezes(i))}))


def test_every_path_in_the_code_of_a_function_is_known():
    """Three and more texts of a list are one tuple in the code; so is a case's pattern."""

    def reads(found):
        for name in ["a.keras", "b.csv", "c.txt"]:
            found.append(name)
        return found in {"d.h5", "e.h5"}

    found = constant_paths(reached({"reads": reads}))
    assert {Path(path).name for path in found} == {"a.keras", "b.csv", "c.txt", "d.h5", "e.h5"}


def test_every_path_of_a_callback_is_known():
    callbacks = keras.callbacks

    class Own(callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.out_file = "own.txt"

    found = paths(
        [
            callbacks.ModelCheckpoint("a.keras", monitor="val_loss"),
            callbacks.CSVLogger("b.csv"),
            callbacks.BackupAndRestore("c"),
            callbacks.EarlyStopping("loss", mode="min"),
            Own(),
        ]
    )
    names = ("a.keras", "b.csv", "c", "own.txt")
    assert {os.path.abspath(name) for name in names} <= set(found)
    assert {Path(path).relative_to(Path.cwd()).parts[0] for path in found} == set(names)
    assert found[os.path.abspath("b.csv")] == "CSVLogger"


def test_fits_that_wait_for_each_other_go_on_and_it_is_said():
    one, other = (keras.callbacks.Callback() for _ in range(2))
    get = {"in": (one, other), "turned": (other, one)}

    def function(order):
        for callback in order:
            fit(network(), callbacks=[callback])

    notes = []
    with Engine(notes=notes.append) as engine:
        calls = [FunctionCall(i, partial(function, get[name]), i) for i, name in enumerate(get)]
        assert [outcome.error for outcome in engine.run(calls)] == [None, None]
    assert "run one at a time" in notes[0]
    assert notes[1].endswith("and its result may differ: pass concurrent=False")


def test_the_clock_is_spoken_of():
    def function(i):
        began = time.perf_counter()
        fit(network(i))
        return time.perf_counter() - began > 0

    found, notes = together(lambda: function)
    assert found == [True] * N
    assert notes[0].startswith("function() reads the clock: other functions train between its read")


def test_files_that_the_clock_names_are_one_path():
    def function(i):
        name = f"log-{datetime.now():%Y%m%d-%H%M}.csv"
        fit(network(i), callbacks=[keras.callbacks.CSVLogger(name)])
        return len(Path(name).read_text().splitlines())

    found, notes = together(lambda: function)
    assert found == [3] * N
    assert "CSVLogger writes to 'log-" in notes[1]
    assert "which the clock names, so that functions that begin together" in notes[1]


def test_logs_that_the_clock_names_are_apart_and_fits_together():
    """In order, the clock would have named one for each; nothing here reads them."""

    def function(i):
        name = f"log-{datetime.now():%Y%m%d-%H%M}"
        log = keras.callbacks.CSVLogger(f"{name}.csv", append=True)
        fit(network(i), epochs=2, callbacks=[log])
        return name

    found, notes = together(lambda: function)
    (first, *_) = found
    logs = sorted(Path().glob("log-*.csv"))
    assert [each.name for each in logs] == sorted(
        f"{first}{number}.csv" for number in ("", "-1", "-2")[:N]
    )
    assert all(len(each.read_text().splitlines()) == 3 for each in logs)
    assert not any("run one at a time" in note for note in notes)
    assert any("CSVLogger of the later ones writes to that path with -1" in n for n in notes)


# -- the switch ------------------------------------------------------------------------------------


def order_of(**engine):
    log = []

    def function(i):
        log.append(f"{i} begins")
        fit(network(i), epochs=3 - i)
        log.append(f"{i} ends")

    _, notes = together(lambda: function, **engine)
    return log, notes


def test_one_after_the_other_on_request():
    log, notes = order_of(concurrent=False)
    assert log == [f"{i} {what}" for i in range(N) for what in ("begins", "ends")]
    assert notes == []


def test_together_on_request():
    log, notes = order_of(concurrent=True)
    assert log[:N] == [f"{i} begins" for i in range(N)]
    assert notes == []


def test_an_outcome_is_handled_before_the_next_function_begins():
    log = []

    def function(i):
        log.append(i)
        fit(network(i), epochs=1)

    with Engine(concurrent=False) as engine:
        for outcome in engine.run(FunctionCall(i, partial(function, i), i) for i in range(N)):
            log.append(f"{outcome.number} handled")
    assert log == [0, "0 handled", 1, "1 handled", 2, "2 handled"]


def test_the_switch_is_checked():
    with pytest.raises(UsageError, match="concurrent: 'no' is not True, False or None; False runs"):
        Engine(concurrent="no")


def test_a_class_that_a_function_defines_goes_with_its_objects():
    """It may close over a model."""

    class Log(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.lines.append(epoch)

    assert written_attributes(Log) == written_attributes(Log) == ("lines",)
    there = weakref.ref(Log)
    del Log
    gc.collect()
    assert there() is None
