"""The jobs of ``joblib.Parallel`` on the backend "paceline", beside joblib's sequential backend."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import warnings

import joblib
import keras
import numpy as np
import pytest

import paceline
from paceline.compat.joblib import backend
from paceline.errors import UsageError
from toys import CLASSES, FEATURES, data

X, Y = data(48, seed=1)
MADE: list[int] = []  # what `counting` changes


def train(rate: float, *, epochs: int = 2, seed: int | None = 3):
    """The weights of a model, and the loss of each epoch."""
    if seed is not None:
        keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(4, activation="relu"), keras.layers.Dense(CLASSES)]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate), loss)
    history = model.fit(X, Y, epochs=epochs, batch_size=16, verbose=0)
    return model.get_weights(), history.history["loss"]


def counting(rate: float):
    MADE.append(len(MADE))
    return train(rate), MADE[-1]


def failing(rate: float):
    if rate > 0.1:
        raise ValueError(f"rate {rate} is too high")
    return train(rate)


def drawing(rate: float):
    return random.random(), np.random.random(), train(rate, seed=None)[1]


@pytest.fixture
def outcomes(monkeypatch):
    """The outcome of each job, in the order in which they end."""
    found = []
    tell = backend._JobRun._tell

    def told(run, job):
        found.append(job.outcome)
        tell(run, job)

    monkeypatch.setattr(backend._JobRun, "_tell", told)
    return found


def parallel(function, rates, config=(), **arguments):
    with joblib.parallel_config(backend="paceline", **dict(config)):
        return joblib.Parallel(**arguments)(joblib.delayed(function)(rate) for rate in rates)


def assert_equal(found, expected):
    for (weights, losses), (weights_there, losses_there) in zip(found, expected, strict=True):
        np.testing.assert_allclose(losses, losses_there, 1e-4, 1e-5)
        for one, there in zip(weights, weights_there, strict=True):
            np.testing.assert_allclose(one, there, 1e-4, 1e-5)


RATES = [0.01, 0.03, 0.1, 0.05, 0.02]


@pytest.fixture(scope="module")
def one_by_one():
    return [train(rate) for rate in RATES]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"n_jobs": 2},
        {"n_jobs": -1, "pre_dispatch": 2},
        {"batch_size": 3, "pre_dispatch": "all"},
        {"return_as": "generator"},
        {"return_as": "generator_unordered", "n_jobs": 3},
        {"require": "sharedmem"},
    ],
    ids=str,
)
def test_results_come_in_order_and_fits_train_in_packs(arguments, one_by_one, outcomes):
    results = list(parallel(train, RATES, **arguments))
    assert_equal(results, one_by_one)
    assert [fit.plan for outcome in outcomes for fit in outcome.fits] == ["vectorized"] * len(RATES)


def test_n_jobs_limits_the_jobs_under_way(outcomes):
    parallel(train, RATES, n_jobs=2)
    spans = [(outcome.began, outcome.ended) for outcome in outcomes]
    assert max(sum(a <= began < b for a, b in spans) for began, _ in spans) == 2


def test_n_jobs_1_is_a_plain_loop(one_by_one, outcomes):
    assert_equal(parallel(train, RATES[:2], n_jobs=1), one_by_one[:2])
    assert outcomes == []


def test_n_jobs_0_is_refused():
    with pytest.raises(ValueError, match="n_jobs must not be 0"):
        parallel(train, RATES, n_jobs=0)


def test_a_parallel_may_be_called_several_times(one_by_one):
    with joblib.Parallel(backend="paceline") as both:
        for _ in range(2):
            assert_equal(both(joblib.delayed(train)(rate) for rate in RATES[:3]), one_by_one[:3])


def test_generators_may_take_turns(one_by_one):
    with joblib.parallel_config(backend="paceline"):
        ones, others = (
            joblib.Parallel(return_as="generator")(joblib.delayed(train)(r) for r in rates)
            for rates in (RATES[:2], RATES[2:4])
        )
        pairs = list(zip(ones, others, strict=True))
    assert_equal([one for one, _ in pairs], one_by_one[:2])
    assert_equal([other for _, other in pairs], one_by_one[2:4])


def test_a_generator_that_is_dropped_unwinds_its_jobs(one_by_one, outcomes):
    results = parallel(train, RATES * 2, n_jobs=2, return_as="generator")
    assert_equal([next(results)], one_by_one[:1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # joblib's own: results were not used
        results.close()
    assert len(outcomes) < len(RATES) * 2
    assert keras.Model.fit.__qualname__.startswith("JAXTrainer")  # Keras' own again


def test_an_error_arises_where_the_result_is_taken(one_by_one):
    results = parallel(failing, [0.01, 0.5, 0.03], return_as="generator")
    assert_equal([next(results)], one_by_one[:1])
    with pytest.raises(ValueError, match=r"rate 0\.5 is too high"):
        next(results)
    assert_equal(parallel(failing, RATES[:2]), one_by_one[:2])


def test_a_job_without_keras_is_just_called():
    assert parallel(lambda x: x**2, range(5)) == [0, 1, 4, 9, 16]
    assert parallel(train, []) == []


def test_a_parallel_within_a_job_is_part_of_the_job(one_by_one, outcomes):
    def both(rates):
        return joblib.Parallel(n_jobs=-1)(joblib.delayed(train)(rate) for rate in rates)

    first, second = parallel(both, [RATES[:2], RATES[2:4]])
    assert_equal([*first, *second], one_by_one[:4])
    assert [len(outcome.fits) for outcome in outcomes] == [2, 2]


def test_the_users_seed_decides_what_jobs_draw():
    def drawn():
        keras.utils.set_random_seed(5)
        return parallel(drawing, RATES[:3])

    first = drawn()
    assert first == drawn()
    assert len({job[:2] for job in first}) == 3
    keras.utils.set_random_seed(6)
    assert first != parallel(drawing, RATES[:3])


def test_jobs_that_change_something_shared_run_one_at_a_time(capsys):
    MADE.clear()
    results = parallel(counting, RATES[:3])
    assert [number for _, number in results] == [0, 1, 2]
    assert "counting() changes 'MADE'" in capsys.readouterr().err


class Estimator:
    """Holds what it has trained, as scikit-learn's estimators do; a clone has its own."""

    def __init__(self, rate=0.01):
        self.rate = rate

    def get_params(self, deep=True):
        return {"rate": self.rate}

    def fit(self, rate=None):
        self.rate_ = self.rate if rate is None else rate
        self.weights_, self.losses_ = train(self.rate_)
        return self


def test_an_estimator_that_jobs_share_is_found(capsys, one_by_one):
    def shared(estimator, rate):
        estimator.fit(rate)
        return estimator.weights_, estimator.losses_, estimator.rate_

    with joblib.parallel_config(backend="paceline", progress=False):
        one, calls = Estimator(), joblib.delayed(shared)
        found = joblib.Parallel()(calls(one, rate) for rate in RATES[:2])
        assert "jobs run one at a time" in capsys.readouterr().err
        assert [each[2] for each in found] == RATES[:2]
        assert_equal([each[:2] for each in found], one_by_one[:2])
        fit = joblib.delayed(Estimator.fit)
        found = joblib.Parallel()(fit(Estimator(rate)) for rate in RATES[:2])
    assert capsys.readouterr().err == ""
    assert_equal([(each.weights_, each.losses_) for each in found], one_by_one[:2])


def test_one_at_a_time_is_a_choice(capsys, outcomes):
    MADE.clear()
    parallel(counting, RATES[:2], {"concurrent": True, "progress": False})
    parallel(train, RATES[:2], {"concurrent": False, "progress": False})
    assert capsys.readouterr().err == ""
    *together, one, other = outcomes
    assert together[1].began < together[0].ended
    assert one.ended <= other.began
    with pytest.raises(UsageError, match="concurrent: 'no' is not True, False or None"):
        parallel(train, RATES, {"concurrent": "no"})
    with pytest.raises(UsageError, match="jobs must be an option of the backend 'paceline', got 3"):
        parallel(train, RATES, {"jobs": 3})


def test_a_summary_of_the_fits_of_each_call(capsys):
    parallel(train, RATES[:3])
    assert re.fullmatch(
        r"paceline: 3 jobs, 3 fits in packs \(1 program\), \d+\.\d s\n", capsys.readouterr().err
    )
    parallel(abs, [-1, 2])
    assert capsys.readouterr().err == ""


def test_a_timeout_is_not_kept_and_joblib_says_so():
    with pytest.warns(UserWarning, match="does not support timeout"):
        parallel(abs, [-1, 2], timeout=1)


def test_verbose_shows_joblibs_progress(capsys):
    parallel(abs, [-1, 2], verbose=11)
    said = capsys.readouterr().err
    assert "Using backend PacelineBackend" in said
    assert "Done   2 out of   2" in said


REGISTERED = """
import importlib.util, sys
{first}
import paceline
{look}
import joblib
assert type(joblib.__spec__.loader).__name__ == "SourceFileLoader", joblib.__spec__
assert joblib.__loader__ is joblib.__spec__.loader
from joblib.parallel import BACKENDS
assert "paceline" in BACKENDS
assert "keras" not in sys.modules
"""


@pytest.mark.parametrize(
    ("first", "look"),
    [
        ("", "assert 'joblib' not in sys.modules"),
        ("", "assert importlib.util.find_spec('joblib').loader.get_source('joblib')"),
        ("import joblib", "importlib.reload(paceline)"),
    ],
)
def test_joblib_knows_the_backend_whichever_is_imported_first(first, look):
    script = REGISTERED.format(first=first, look=look)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    assert paceline.__name__ == "paceline"
