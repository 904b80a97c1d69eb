"""``paceline.bench``: what it checks, and a whole small result."""

from __future__ import annotations

import inspect
import json

import keras
import numpy as np
import pytest

import paceline
import toys
from bench_records import run
from paceline.benchmark import api, arguments
from paceline.benchmark.measure import environment
from paceline.benchmark.measure import runner as runner_module
from paceline.benchmark.measure.accuracy import CurveInterrupted
from paceline.benchmark.measure.pilot_search import run_pilot
from paceline.benchmark.measure.subject import BenchModel
from paceline.benchmark.presentation.result import Bench, load
from paceline.benchmark.records import CellConfig, Curve, Measurement, PlannedSearch
from paceline.data.arrays import prepare
from paceline.errors import BuildError, DataError, UsageError
from paceline.report.forecast import Costs, Pace

X, Y = toys.data(40)
BUSY_NOTE = environment.busy_note


def linear(hp):
    """As little to compile as can be."""
    layers = [keras.Input((toys.FEATURES,)), keras.layers.Dense(toys.CLASSES, "softmax")]
    model = keras.Sequential(layers)
    model.compile(
        keras.optimizers.SGD(hp.Float("lr", 1e-3, 1e-1)), "sparse_categorical_crossentropy"
    )
    return model


@pytest.fixture(scope="module", autouse=True)
def short():
    """Timings are rough, and the device is not probed: probes have a test of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "busy_note", lambda: None)
        patch.setattr(runner_module.BenchPlan.__init__, "__defaults__", _with_patience(0.01))
        patch.setattr(environment, "matmul_flops", lambda precision: 1e9)
        patch.setattr(environment, "copy_bytes", lambda: 1e9)
        yield


def _with_patience(seconds):
    defaults = runner_module.BenchPlan.__init__.__defaults__
    return tuple(seconds if value == runner_module.PATIENCE else value for value in defaults)


@pytest.fixture(scope="module")
def result(short):
    notes: list[str] = []
    found = paceline.bench(
        linear,
        X,
        Y,
        validation_data=toys.data(8),
        batch_sizes=[8],
        parallel_trials=[2],
        hparams={"lr": 0.02},
        measure_for=None,
        on_note=notes.append,
    )
    return found, notes


def test_every_cell_is_measured_or_left_out_for_a_reason(result):
    (found,) = result[0].runs
    ways = {(c.config.batch_size, c.config.plan, c.config.slots) for c in found.cells}
    assert {(8, "sequential", 1), (8, "vectorized", 1), (8, "vectorized", 2)} <= ways
    assert sum(plan == "fit" for _, plan, _ in ways) == 1
    for measurement in found.cells:
        assert (measurement.state == "measured") is (measurement.reason is None)
    assert found.first_epoch is not None


def test_the_result_says_what_was_measured_where(result):
    (found,) = result[0].runs
    assert found.model["hparams"] == {"lr": 0.02}
    assert set(found.versions) == {"paceline", "keras", "jax", "jaxlib", "python"}
    assert (found.precision, found.backend, found.n_examples) == ("float32", "jax", 40)
    assert found.device.platform == "cpu"
    assert all(measurement.peak_share for measurement in found.measured)


def test_cells_are_told_as_they_are_measured(result):
    found, notes = result
    told = [note for note in notes if " of " in note]
    assert told[0].startswith("1 of ")
    assert len(told) <= len(found.runs[0].cells)


def test_the_result_goes_to_a_file_and_comes_back(result, tmp_path):
    found = result[0]
    found.save(tmp_path / "a.json")
    again = load(tmp_path / "a.json")
    assert again.runs == found.runs
    assert again.to_json() == found.to_json()
    assert str(again) == str(found)


def test_the_winner_is_in_the_json(result):
    value = result[0].to_json()
    best = value["runs"][value["fastest"]["run"]]["cells"][value["fastest"]["cell"]]
    rates = [measurement["examples_per_second"] or 0 for measurement in value["runs"][0]["cells"]]
    assert best["examples_per_second"] == max(rates)
    assert json.loads(json.dumps(value)) == value


def test_hparams_are_kept_as_a_file_can_hold_them():
    given = {"lr": 0.1, "act": "relu", "bias": True, "size": np.int64(3), "kernel": (3, 3)}
    expected = {"lr": 0.1, "act": "relu", "bias": True, "size": 3, "kernel": "(3, 3)"}
    assert api._as_scalars(given) == expected
    assert type(api._as_scalars(given)["size"]) is int


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(UsageError, match="must end in .html or .json"):
        Bench([run()]).save(tmp_path / "a.txt")


def test_a_file_that_is_no_result_is_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("{")
    with pytest.raises(DataError, match=r"a\.json cannot be read as a result"):
        load(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_sizes": [8, 64]}, "batch_sizes must be at most 40 .training examples., got 64"),
        ({"batch_sizes": [0]}, "batch_sizes must be a positive integer, got 0"),
        ({"batch_sizes": []}, "batch_sizes must not be empty"),
        ({"batch_sizes": 32}, "batch_sizes must be a list .* got 32"),
        ({"parallel_trials": "auto"}, "parallel_trials must be a list such as .* got 'auto'"),
        ({"parallel_trials": []}, "parallel_trials must not be empty"),
        (
            {"parallel_trials": [1, "many"]},
            "parallel_trials must be a positive integer, got 'many'",
        ),
        ({"measure_for": 0}, "measure_for must be a number of seconds above 0, got 0"),
        ({"measure_for": "5m"}, "measure_for must be a number of seconds above 0, got '5m'"),
        ({"hparams": {"units": 3}}, "hparams: this model has no hyperparameter 'units'"),
        ({"precision": "int4"}, "precision must be one of .* got 'int4'"),
        ({"mesh": 0}, "mesh must be a positive integer, got 0"),
        ({"predict_trials": 0}, "predict_trials must be a positive integer, got 0"),
        (
            {"predict_trials": 3, "predict_epochs": 0},
            "predict_epochs must be a positive integer, got 0",
        ),
        (
            {"predict_trials": 3, "predict_batch_size": 99},
            "predict_batch_size must be at most 40 .* got 99",
        ),
        ({"predict_trials": 3, "predict_pruner": "ax"}, "pruner: 'ax'"),
        ({"quota": "gpu=30h"}, "quota describes a planned search"),
        ({"predict_pruner": "rubbish"}, "predict_pruner describes a planned search"),
        (
            {"predict_trials": 10**9 + 1},
            "predict_trials must be at most 1,000,000,000. Plan a smaller",
        ),
        ({"workers": 8}, "workers describes a planned search. Pass predict_trials as well"),
        ({"predict_trials": 3, "workers": 0}, "workers must be a positive integer, got 0"),
        ({"predict_trials": 3, "workers": 2, "executor": "fit"}, "workers: .* Leave out workers"),
        ({"predict_trials": 3, "quota": "npu=1h"}, "quota must be for .* got 'npu'"),
        ({"executor": "local"}, "executor must be auto or fit, got 'local'"),
        ({"x": iter([1])}, "x must be arrays for a measurement, but x is a list_iterator"),
        ({"validation_data": iter([1])}, "validation_data must be"),
        ({"epochs": 2}, "epochs: comparing accuracy needs validation data"),
        ({"epochs": 0}, "epochs must be a positive integer, got 0"),
        ({"scale_lr": "linear"}, "scale_lr describes trials that are trained"),
        ({"target_value": 0.9}, "target_value describes trials that are trained"),
        ({"scale_lr": "cubic"}, "scale_lr must be one of none, linear, sqrt, got 'cubic'"),
        ({"target_value": "high"}, "target_value must be a number, got 'high'"),
    ],
)
def test_bad_input(arguments, message):
    given = {"x": X, "y": Y, **arguments}
    with pytest.raises(UsageError, match=message):
        paceline.bench(toys.dense, **given)


def test_weights_of_examples_are_read():
    with pytest.raises(DataError, match="sample_weight has 3"):
        paceline.bench(toys.dense, X, Y, sample_weight=np.ones(3))


def test_a_model_that_fails_fails_first():
    def build(hp):
        raise ValueError("no layers")

    with pytest.raises(BuildError, match="failed: ValueError: no layers"):
        paceline.bench(build, X, Y)


def looks_up(hp):
    """Looks up to ten tokens, and learns its inputs from the data."""
    layers = keras.layers.Embedding(10, 2), keras.layers.Flatten(), keras.layers.Dense(1)
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    return model


def test_labels_tokens_and_whole_numbers_are_checked():
    labels, tokens = np.arange(40) % 8, np.arange(40).reshape(20, 2) % 10
    with pytest.raises(DataError, match="^training data: labels go from 0 to 7"):
        paceline.bench(toys.dense, X, labels)
    with pytest.raises(DataError, match="^validation data: labels go from 0 to 7"):
        paceline.bench(toys.dense, X, labels % 3, validation_data=(X, labels))
    with pytest.raises(DataError, match=r"^validation data: .* the Embedding .*, got 11\."):
        paceline.bench(looks_up, tokens, Y[:20], validation_data=(tokens + 2, Y[:20]))
    with pytest.raises(DataError, match=r"^training data: x, column 1, holds 1,700,000,000,001"):
        paceline.bench(looks_up, tokens + 1_700_000_000_000 - 8, Y[:20])


@pytest.mark.parametrize(("load", "said"), [(0.3, False), (0.99, False), (16.2, True)])
def test_a_busy_machine_is_said_to_be_one(monkeypatch, load, said):
    monkeypatch.setattr(environment, "cores", lambda: 2)
    found = BUSY_NOTE(lambda: (load, 0.0, 0.0))
    assert (found is not None) is said
    if said:
        assert "load 16.2 on 2 cores" in found


def test_batch_sizes_stop_at_the_data():
    notes: list[str] = []
    assert arguments.check_batch_sizes(None, 100, notes.append) == (32, 64)
    assert notes == ["skipped batch sizes above the 100 training examples: [128, 256, 512, 1024]"]
    assert arguments.check_batch_sizes(None, 20, notes.append) == (20,)


def test_several_devices_are_compared_with_one():
    assert arguments.meshes(8) == ((8, 1), (1, 8))
    assert arguments.meshes(1) == ()
    assert arguments.meshes(None) == ()  # a CPU's cores are used by threads
    with pytest.raises(UsageError, match="mesh: you asked for 9 devices"):
        arguments.meshes(9)


def test_a_budget_that_does_not_suffice_is_said():
    # After building and tracing it is used up.
    with pytest.raises(UsageError, match=r"measure_for: 1e-06 s are too short. .*60 s"):
        paceline.bench(
            toys.dense, X, Y, batch_sizes=[8], measure_for=1e-6, on_note=lambda text: None
        )


class Moved:
    """A clock that each cell moves by so many seconds."""

    def __init__(self, seconds):
        self.now, self.seconds = 0.0, seconds

    def __call__(self):
        return self.now


def runner(clock, **plan):
    subject = BenchModel(linear, {}, prepare(X, Y), None)
    plan = runner_module.BenchPlan((8, 20), slots=(2,), fit="no", **plan)
    return runner_module.Runner(subject, plan, {"name": "toy"}, clock=clock)


@pytest.fixture
def measured(monkeypatch):
    """Runs a run whose cells take so many seconds of a clock that only they move."""

    def run(seconds, flops=None, **plan):
        clock = Moved(seconds)

        def measure(subject, config, **_):
            clock.now += clock.seconds
            step = 1e-3 * config.batch_size * config.at_once  # all ways are equally fast
            of_step = None if flops is None else flops * config.batch_size / 8
            return Measurement(
                config, "measured", compile=1.0, step=step, low=step, high=step, flops=of_step
            )

        monkeypatch.setattr(runner_module, "measure", measure)
        return runner(clock, **plan)()

    return run


def test_the_budget_is_kept(measured):
    found = measured(10.0, budget=35.0)
    states = [measurement.state for measurement in found.cells]
    assert states[:4] == ["measured"] * 4
    assert set(states[4:]) == {"skipped"}
    assert {measurement.reason for measurement in found.cells[4:]} == {
        "the measuring time is used up"
    }


def test_without_a_budget_all_is_measured(measured):
    assert {measurement.state for measurement in measured(10.0).cells} == {"measured"}


def test_one_way_is_that_of_a_search(measured):
    measurements = measured(0.0).cells
    assert (
        len({measurement.config.way for measurement in measurements if measurement.config.usual})
        == 1
    )
    assert CellConfig(8) in [measurement.config for measurement in measurements]


def test_curves_come_before_the_cells_that_say_least(measured, monkeypatch):
    order = []

    def train_curve(subject, batch_size, epochs, *, scale, plan, **_):
        order.append((batch_size, epochs, scale, plan, len(found_cells())))
        return Curve(batch_size, "val_loss", "minimize", [1.0], [1.0], scale=scale)

    made = []
    keep = runner_module.Runner.__init__
    monkeypatch.setattr(
        runner_module.Runner,
        "__init__",
        lambda self, *a, **k: made.append(self) or keep(self, *a, **k),
    )
    monkeypatch.setattr(runner_module, "train_curve", train_curve)

    def found_cells():
        return [c for c in made[0].cells if c.config.plan in ("vectorized", "looped")]

    found = measured(1.0, epochs=5, scale_lr="linear")
    assert [(size, epochs, scale) for size, epochs, scale, _, _ in order] == [
        (8, 5, 1.0),
        (20, 5, 2.5),
    ]
    assert len(found.curves) == 2
    assert order[0][-1] < len(found_cells())


def test_a_curve_that_the_budget_has_no_time_for(measured):
    found = measured(10.0, budget=10.5, epochs=5)
    assert {curve.reason for curve in found.curves} == {"the measuring time is used up"}


def test_an_interrupted_curve_is_kept(measured, monkeypatch):
    def train_curve(subject, batch_size, epochs, **_):
        raise CurveInterrupted(Curve(batch_size, "val_loss", "minimize", [1.0], [1.0]))

    monkeypatch.setattr(runner_module, "train_curve", train_curve)
    found = measured(1.0, epochs=5)
    assert found.interrupted
    assert [curve.reason for curve in found.curves] == ["interrupted after 1 epoch"]


def test_half_of_the_budget_is_for_curves(measured, monkeypatch):
    given = []

    def train_curve(subject, batch_size, epochs, *, left, **_):
        given.append(left())
        return Curve(batch_size, "val_loss", "minimize", [1.0], [1.0])

    monkeypatch.setattr(runner_module, "train_curve", train_curve)
    measured(10.0, budget=100.0, epochs=5)
    # Five cells of ten seconds, then both curves share what is left.
    assert given == [pytest.approx(25.0), pytest.approx(50.0)]


@pytest.mark.parametrize(("again", "share", "noted"), [(4e5, 0.5, False), (1e5, 1.0, True)])
def test_a_peak_that_is_too_low_is_probed_again(measured, monkeypatch, again, share, noted):
    # A step of the fake does 1,000 examples a second; of each, so many operations.
    monkeypatch.setattr(environment, "matmul_flops", lambda precision: probes.pop(0))
    probes = [1e5, again]
    flops = 200 * 8 * (1.0 if not noted else 1.25)
    found = measured(0.0, flops=flops)
    shares = [c.peak_share for c in found.cells if c.config.batch_size == 8]
    assert max(shares) == pytest.approx(share * (1 if not noted else 2.5))
    assert any("faster than the measured peak" in note for note in found.notes) is noted


def test_a_search_of_long_epochs_is_predicted_from_steps(measured, monkeypatch):
    monkeypatch.setattr(runner_module, "run_pilot", lambda *_: None)
    usual = CellConfig(0, 4, "vectorized", packs=2)
    monkeypatch.setattr(runner_module.Runner, "_usual", lambda self, size: usual)
    found = measured(0.0, search=PlannedSearch(16, 3))
    # A step of the fake takes 1 ms for each example: 8 trials' epochs of 40 examples.
    assert found.costs["pace"] == {"at_once": 8, "round": pytest.approx(0.32)}
    assert (found.costs["batch_size"], found.costs["ready"]) == (8, 1.0)
    assert "predicted from single steps" in found.notes[-1]
    assert Bench([found], plan=PlannedSearch(16, 3)).predicted(found).n_rounds == 6


def test_a_search_on_a_cluster_is_predicted_with_the_start_of_a_worker(measured, monkeypatch):
    def pilot(*arguments):
        inspect.signature(run_pilot).bind(*arguments)
        return Costs(8, 1.0, Pace(8, 0.5))

    monkeypatch.setattr(runner_module, "run_pilot", pilot)
    monkeypatch.setattr(runner_module, "startup_seconds", lambda: 7.0)
    found = measured(0.0, search=PlannedSearch(16, 3, workers=4))
    assert found.costs["startup"] == 7.0
    assert found.costs["ready"] >= 1.0  # with the first build, which is done before the pilot
    assert Bench([found], plan=PlannedSearch(16, 3, workers=4)).on_cluster(found).startup == 7.0


def test_a_search_that_could_not_be_begun_is_said(measured, monkeypatch):
    def fail(*_):
        raise ValueError("no storage")

    monkeypatch.setattr(runner_module, "run_pilot", fail)
    found = measured(0.0, search=PlannedSearch(16, 3))
    assert "the planned search could not be started: ValueError: no storage" in found.notes


def test_a_model_that_fails_on_one_batch_size_is_measured_on_the_others(measured, monkeypatch):
    usual = runner_module.Runner._usual

    def fails_on_8(self, size):
        if size == 8:
            raise ValueError("8 is too few")
        return usual(self, size)

    monkeypatch.setattr(runner_module.Runner, "_usual", fails_on_8)
    found = measured(0.0)
    assert {c.config.batch_size for c in found.cells} == {8, 20}
    assert any(c.config.usual for c in found.cells)


def test_what_a_search_does_may_depend_on_the_batch_size(measured, monkeypatch):
    ways = {8: CellConfig(0, 4, "vectorized", packs=2), 20: CellConfig(0, 1, "vectorized", packs=2)}
    monkeypatch.setattr(runner_module.Runner, "_usual", lambda self, size: ways[size])
    measurements = measured(0.0).cells
    usual = {c.config.batch_size: c.config.way for c in measurements if c.config.usual}
    assert usual == {size: way.way for size, way in ways.items()}


def test_what_a_search_does_is_not_measured_twice(measured, monkeypatch):
    ways = {8: CellConfig(0, 4, "vectorized", packs=2), 20: CellConfig(0)}
    monkeypatch.setattr(runner_module.Runner, "_usual", lambda self, size: ways[size])
    measurements = measured(0.0).cells
    at_20 = [c.config for c in measurements if c.config.batch_size == 20]
    assert [s.way for s in at_20 if s.usual] == [CellConfig(20).way]
    assert len({s.way for s in at_20}) == len(at_20)


def test_an_interrupt_keeps_what_is_there(monkeypatch):
    calls = []

    def measure(subject, config, **_):
        calls.append(config)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return Measurement(config, "measured", compile=1.0, step=0.1, low=0.1, high=0.1)

    monkeypatch.setattr(runner_module, "measure", measure)
    found = runner(Moved(0.0))()
    assert found.interrupted
    assert [measurement.config for measurement in found.cells] == calls[:2]


def test_a_model_that_cannot_be_packed_is_measured_in_fit(monkeypatch):
    def fit(model, data, config, **_):
        return Measurement(config, "measured", step=0.1, low=0.1, high=0.1), None

    monkeypatch.setattr(runner_module, "measure_fit", fit)
    found = paceline.bench(
        lambda hp: toys.softmax(run_eagerly=True), X, Y, batch_sizes=[8, 20], on_note=lambda text: 0
    )
    (only,) = found.runs
    assert [(c.config.batch_size, c.config.plan) for c in only.cells] == [(8, "fit"), (20, "fit")]
    assert only.notes == [
        "trials of this model train in Keras' own fit: it is compiled with run_eagerly=True"
    ]
