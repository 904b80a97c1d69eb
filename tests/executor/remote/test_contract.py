"""What every executor of packs must do, on this machine and on others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from in_process_pool import InProcessPool
from paceline.data.arrays import prepare
from paceline.executor.base import Job, JobSpec, PackOptions, SearchData
from paceline.executor.local import LocalExecutor
from paceline.executor.pack_executor import PackExecutor
from paceline.executor.remote.driver import RemoteExecutor
from paceline.executor.remote.host import Host, HostOptions
from paceline.executor.testing import Data, PackExecutorContract, make_job
from paceline.program.numbers import number_settings, set_numbers

OPTIONS = PackOptions(2, "vectorized")


@dataclass(frozen=True)
class ContractRecipe:
    """Makes the contract's jobs on another machine."""

    data: SearchData
    batch_size: int = 16  # examples per step
    precision: str | None = None
    code_digest: str | None = None
    numbers: Mapping[str, Any] | None = None

    def apart(self) -> tuple[dict[str, Any], ContractRecipe]:
        """Nothing of it is the user's."""
        return {}, self

    def writing_below(self, here: Callable[[int, Path, str, bool], Path]) -> ContractRecipe:
        """Its jobs have no callbacks."""
        return self

    def together(self, code: dict[str, Any]) -> ContractRecipe:
        """The inverse of ``apart``."""
        return self

    def job(self, spec: JobSpec) -> Job:
        """The job of a spec."""
        return make_job(spec, self.batch_size)


def search_data(data: Data, validation: Data) -> SearchData:
    return SearchData(prepare(*data), prepare(*validation), shuffle=False)


class TestLocalExecutor(PackExecutorContract):
    """Packs in this process."""

    def executor(self, data: Data, validation: Data) -> PackExecutor:
        return LocalExecutor(search_data(data, validation), OPTIONS)


class TestRemoteExecutor(PackExecutorContract):
    """Packs on two machines that are objects of this process."""

    n_hosts = 2

    @pytest.fixture(autouse=True)
    def _pool(self) -> None:
        self.pool: InProcessPool | None = None

    def executor(self, data: Data, validation: Data) -> PackExecutor:
        found = search_data(data, validation)
        job_factory = ContractRecipe(found, self.batch_size)

        def make() -> Any:
            return Host(job_factory, HostOptions(OPTIONS), own_process=False)

        self.pool = InProcessPool(make, self.n_hosts)
        return RemoteExecutor(found, self.pool, OPTIONS)


def test_a_machine_computes_in_what_the_search_does() -> None:
    """A process of a cluster begins with Keras' and JAX' own settings."""
    own = number_settings()
    wanted = {
        "dtype_policy": keras.dtype_policies.serialize(keras.DTypePolicy("mixed_float16")),
        "floatx": "float64",
        "epsilon": 1e-5,
        "image_data_format": "channels_first",
        "jax_enable_x64": True,
    }
    data = (np.zeros((8, 6), "float32"), np.zeros(8, "int32"))
    job_factory = ContractRecipe(search_data(data, data), numbers=json.loads(json.dumps(wanted)))
    try:
        host = Host(job_factory, HostOptions(OPTIONS))
        assert number_settings() == wanted
        host.close()
    finally:
        set_numbers(own)
    assert number_settings() == own
