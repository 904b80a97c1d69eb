"""The session is as strict as conftest.py says."""

import os
import random
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest


def test_there_are_always_several_devices():
    import jax

    if os.environ["JAX_PLATFORMS"] != "cpu":
        pytest.skip("devices are what this machine has: JAX_PLATFORMS is set")
    assert jax.device_count() == 8


def test_keras_runs_on_jax_and_reads_no_settings_of_the_user():
    import keras

    assert keras.config.backend() == "jax"
    assert not Path(os.environ["KERAS_HOME"]).is_relative_to(Path.home() / ".keras")


def test_a_warning_is_an_error():
    with pytest.raises(UserWarning, match="loud"):
        warnings.warn("loud", stacklevel=1)


def test_the_working_folder_is_empty(fresh_folder):
    assert Path.cwd() == fresh_folder
    assert not list(fresh_folder.iterdir())


def test_caches_belong_to_the_session():
    for name in ("JAX_COMPILATION_CACHE_DIR", "PACELINE_CACHE_DIR"):
        assert "paceline-tests-" in os.environ[name]


def test_random_state_sees_every_draw(random_state):
    before = random_state()
    assert random_state() == before
    random.random()
    assert random_state() != before

    before = random_state()
    np.random.random()
    assert random_state() != before


@pytest.mark.parametrize("again", [False, True])
def test_every_test_starts_from_the_same_random_state(again):
    random.seed(0)
    np.random.seed(0)
    assert random.random() == pytest.approx(0.8444218515250481)
    assert np.random.random() == pytest.approx(0.5488135039273248)


def test_a_file_that_is_missing_skips_with_its_name(data_file):
    with pytest.raises(pytest.skip.Exception, match=r"no such\.npz in .*PACELINE_DATA"):
        data_file("such.npz")


def test_the_session_begins_without_pytest_xdist():
    """As in the environments of `make test-backends`."""
    here = Path(__file__)
    collect = ["-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "--collect-only", "-q"]
    found = subprocess.run(
        [sys.executable, *collect, str(here)],
        cwd=here.parents[1],
        check=False,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout
