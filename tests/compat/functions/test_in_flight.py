"""How many trials are in flight at once."""

from __future__ import annotations

import jax
import keras
import optuna
import pytest
from optuna.samplers import (
    GPSampler,
    GridSampler,
    NSGAIISampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)

from paceline.compat.functions.in_flight import TrialsInFlight, allowed


@pytest.mark.parametrize(
    ("n_ended", "on_cpu", "most"), [(0, True, 8), (500, True, 8), (0, False, 8), (160, False, 28)]
)
def test_a_sampler_that_learns_has_few(n_ended, on_cpu, most):
    assert allowed(n_ended, on_cpu=on_cpu) == most


@pytest.mark.parametrize(("backend", "most"), [("jax", 28), ("tensorflow", 8)])
def test_only_a_session_on_jax_asks_for_the_device(backend, most, monkeypatch):
    asked = []
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    monkeypatch.setattr(jax, "default_backend", lambda: asked.append(1) or "gpu")
    study = optuna.create_study(sampler=TPESampler())
    assert TrialsInFlight(study, 200, None).most(160) == most
    assert bool(asked) == (backend == "jax")


class OwnSampler(RandomSampler):
    pass


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize(
    ("sampler", "n_trials", "given", "most"),
    [
        (RandomSampler(), 40, None, 40),
        (RandomSampler(), None, None, 32),
        (GridSampler({"x": [1, 2]}), 40, None, 40),
        (TPESampler(), 40, None, 8),
        (NSGAIISampler(), 40, None, 8),
        (GPSampler.__new__(GPSampler), 40, None, 8),  # its constructor needs PyTorch
        (OwnSampler(), 40, None, 8),  # what a class of the user's does is unknown
        (TPESampler(), 40, 3, 3),
        (RandomSampler(), 40, 3, 3),
    ],
)
def test_the_number_follows_from_the_sampler(sampler, n_trials, given, most):
    study = optuna.create_study(sampler=sampler)
    assert TrialsInFlight(study, n_trials, given).most(0) == most


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_quasi_random_waits_for_its_space_before_optuna_5(monkeypatch):
    study = optuna.create_study(sampler=QMCSampler(seed=0))
    monkeypatch.setattr(optuna, "__version__", "4.9.0")
    number = TrialsInFlight(study, 40, None)
    assert (number.most(0), number.most(1)) == (1, 40)
    monkeypatch.setattr(optuna, "__version__", "5.0.0")
    assert TrialsInFlight(study, 40, None).most(0) == 40


def test_a_grid_whose_places_are_taken_has_no_room():
    study = optuna.create_study(sampler=GridSampler({"x": [1, 2]}))
    number = TrialsInFlight(study, None, None)
    assert number.has_room(0, 0)
    study.ask()
    assert number.has_room(1, 0)
    study.ask()
    assert not number.has_room(2, 0)
