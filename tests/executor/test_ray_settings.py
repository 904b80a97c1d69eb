"""What ``paceline.Ray`` and ``executor="ray"`` refuse before anything is connected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

import paceline
from clusters import InProcessCluster, build, searched
from paceline.executor.ray import session
from paceline.executor.ray.pool import WorkerPlace, places
from paceline.executor.ray.session import check_protection


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"workers": 0}, "workers .* must be an integer of at least 1, got 0"),
        ({"cpus": True}, "cpus .the cores of each worker. .* got True"),
        ({"gpus": 0.5}, "gpus must not be a fraction, .* got 0.5. Use gpus=1"),
        ({"gpus": 2}, "gpus must be at most 1, .* got 2.*more workers"),
    ],
)
def test_values_that_cannot_work(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(paceline.UsageError, match=match):
        paceline.Ray(**settings)


@pytest.mark.parametrize(
    ("tuner", "match"),
    [
        ({"executor": 3}, "executor must be a name or a paceline.Ray object, got 3"),
        ({"executor": "ray", "mesh": 2}, "mesh: on a cluster each worker trains on one device"),
        ({"executor": "cluster"}, "executor must be one of auto, packed, fit, ray, got 'cluster'"),
    ],
)
def test_what_a_cluster_cannot_do(tuner: dict[str, Any], match: str) -> None:
    with pytest.raises(paceline.UsageError, match=match):
        paceline.Tuner(build, **tuner)


def test_populations_and_fit_are_refused_before_any_trial() -> None:
    with pytest.raises(paceline.UsageError, match="pbt works on one machine.*use another pruner"):
        searched(InProcessCluster(1), "pbt", pruner="pbt:2", search={"epochs": 8})
    with pytest.raises(paceline.UsageError, match="'ray' cannot train these trials.*Use 'auto'"):
        searched(InProcessCluster(1), "fit", search={"callbacks": keras.callbacks.ProgbarLogger()})
    assert not list(Path("runs").glob("*/journal*"))


def test_ray_that_is_not_installed_is_named_before_any_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(paceline.MissingExtraError, match=r'pip install "paceline\[ray\]"'):
        searched("ray", "none")


def test_jax_on_an_accelerator_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.jax, "default_backend", lambda: "gpu")
    with pytest.raises(paceline.UsageError, match="JAX already uses the gpu.*JAX_PLATFORMS=cpu"):
        session.on_cpu()


def test_a_cluster_that_anybody_may_use_is_joined_only_on_purpose(tmp_path: Path) -> None:
    notes: list[str] = []
    with pytest.raises(paceline.UsageError, match="can run code on it.*RAY_AUTH_MODE=disabled"):
        check_protection("head:6379", notes.append, {}, tmp_path)
    check_protection("head:6379", notes.append, {"RAY_AUTH_MODE": "disabled"}, tmp_path)
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("secret")
    token.chmod(0o644)
    check_protection("head:6379", notes.append, {"RAY_AUTH_MODE": "token"}, tmp_path)
    assert token.stat().st_mode & 0o777 == 0o600
    assert len(notes) == 1 and "(mode 644), so its mode is now 600" in notes[0]


class FakeRay:
    """A cluster of these nodes."""

    def __init__(self, *resources: dict[str, float]) -> None:
        self.resources = resources

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"Alive": True, "NodeID": f"n{at}", "Resources": each}
            for at, each in enumerate(self.resources)
        ]


@pytest.mark.parametrize(
    ("nodes", "settings", "expected"),
    [
        ([{}, {"CPU": 4.0}, {"CPU": 2.0}], {}, [("n1", 4, 0), ("n2", 2, 0)]),
        ([{"CPU": 8.0, "GPU": 2.0}, {"CPU": 4.0}], {}, [("n0", 4, 1)] * 2),
        ([{"CPU": 8.0, "GPU": 2.0}], {"gpus": 0, "cpus": 4}, [("n0", 4, 0)] * 2),
        ([{"CPU": 4.0, "fast": 1.0}, {"CPU": 4.0}], {"resources": {"fast": 1}}, [("n0", 4, 0)]),
        ([{"CPU": 4.0}, {"CPU": 4.0}], {"workers": 4}, [(None, 2, 0)] * 4),
        ([{"CPU": 3.0}, {"CPU": 3.0}], {"workers": 4}, [(None, 1, 0)] * 4),
    ],
)
def test_one_worker_for_each_device(
    nodes: list[dict[str, float]], settings: dict[str, Any], expected: list[Any]
) -> None:
    found = places(FakeRay(*nodes), paceline.Ray(**settings))
    assert found == [WorkerPlace(*each) for each in expected]
