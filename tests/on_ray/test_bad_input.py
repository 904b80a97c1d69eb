"""What cannot work on a cluster fails before any trial, with the next step."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from clusters import DATA, build, searched
from paceline.executor.base import JobSpec
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.ray import pool as pool_module
from paceline.executor.ray import session
from paceline.executor.ray.serialization import pack, unpack
from paceline.executor.ray.session import RaySession
from paceline.tuner.arguments.arguments import read_arguments
from paceline.tuner.search.job_factory import TrialJobFactory

LARGE = np.ones(2_000_000)  # 16 MB
LOCK = threading.Lock()


def build_large(hp: Any) -> Any:
    assert LARGE.size
    return build(hp)


def build_locked(hp: Any) -> Any:
    with LOCK:
        return build(hp)


def job_factory(make: Any = build, **search: Any) -> TrialJobFactory:
    arguments = read_arguments(
        {**DATA, "epochs": 2, "batch_size": 16, "n_trials": 4, **search},
        executor="ray",
        needs_end=True,
        folder=Path("runs"),
        note=print,
    )
    return TrialJobFactory(ModelBuilder(make), arguments, "auto", 2, None)


def test_what_is_sent_makes_the_same_job() -> None:
    sent = unpack(pack(job_factory(batch_size=lambda hp: hp.Choice("batch", [8, 16]))))
    spec = JobSpec(3, 3, 11, 2, {"dropout": 0.2, "rate": 0.01, "batch": 8})
    job, alone = sent.job(spec), job_factory(batch_size=8).job(spec)
    assert (job.number, job.seed, job.epochs, job.batch_size) == (3, 11, 2, 8)
    for ours, theirs in zip(job.model.get_weights(), alone.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_captured_array_above_ten_megabytes_is_named() -> None:
    with pytest.raises(paceline.UsageError, match=r"build: .*captures 16 MB.*'LARGE' \(16 MB\)"):
        pack(job_factory(build_large))


def test_a_lock_or_open_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(paceline.UsageError, match=r"build: .*'LOCK', of type lock.*inside the"):
        pack(job_factory(build_locked))
    file = (tmp_path / "log").open("w")

    def build_open(hp: Any) -> Any:
        file.write("building\n")
        return build(hp)

    with pytest.raises(paceline.UsageError, match=r"build: .*'file', of type TextIOWrapper"):
        pack(job_factory(build_open))
    file.close()


def test_there_is_no_cluster_at_the_address() -> None:
    with pytest.raises(paceline.ClusterError, match="no Ray cluster at '127.0.0.1:1'.*ray start"):
        RaySession(paceline.Ray(address="127.0.0.1:1"), 0, print)


def test_what_is_at_the_address_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections: a head that stands still, or something else."""
    monkeypatch.setattr(session, "_REACH", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(paceline.ClusterError, match=f"no Ray cluster at '{address}'.*timed"):
            RaySession(paceline.Ray(address=address), 0, print)


def test_ray_client_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(paceline.UsageError, match="Ray Client.*ray job submit"):
        RaySession(paceline.Ray(), 0, print)


def test_resources_that_no_machine_has(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "PATIENCE", 2.0)
    executor = paceline.Ray(address=nodes.address, workers=1, resources={"license": 1})
    with pytest.raises(paceline.ClusterError, match="no machine.*'license': 1.*Ask for less"):
        searched(executor, "nobody")
    assert not Path("runs/nobody").exists() or not list(Path("runs/nobody").glob("*journal*"))


def test_a_host_of_a_larger_tpu_slice_is_refused(nodes: Any) -> None:
    slice_of_two = {"env_vars": {"TPU_WORKER_HOSTNAMES": "one,two"}}
    executor = paceline.Ray(address=nodes.address, runtime_env=slice_of_two)
    with pytest.raises(paceline.UsageError, match="one of 2 hosts of a TPU slice.*of one host"):
        searched(executor, "slice")


def test_other_versions_are_refused(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    there = pool_module.library_versions()
    monkeypatch.setattr(pool_module, "library_versions", lambda: {**there, "keras": "0.1"})
    with pytest.raises(paceline.UsageError, match=r"has keras .*, but this process has 0.1.*pip"):
        searched(paceline.Ray(address=nodes.address), "versions")


def test_a_worker_with_another_paceline_cannot_begin(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its class is another one there, so Ray fails before versions can be compared."""

    class Other:
        def __init__(self, on_gpu: bool) -> None:
            raise AttributeError("Can't get attribute 'RayWorker.ping'")

        def ping(self) -> None: ...

    monkeypatch.setattr(pool_module, "RayWorker", Other)
    with pytest.raises(paceline.UsageError, match="'RayWorker.ping'.*the same versions everywhere"):
        searched(paceline.Ray(address=nodes.address), "other")
