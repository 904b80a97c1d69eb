"""Tests against the trackers themselves: ``make test-trackers``, in an environment that has them.

Elsewhere they are not collected: there is nothing to read back with.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

if any(importlib.util.find_spec(name) is None for name in ("mlflow", "wandb", "tensorboard")):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def mlflow_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of a store of files that is the test's own."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    mlflow.set_experiment("Default")  # that of the test before is the process' until then
    return mlflow.MlflowClient()
