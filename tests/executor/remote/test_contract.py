"""What every executor of packs must do, on this machine and on others."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np
import pytest

from paceline.data.arrays import prepare
from paceline.executor.base import PackOptions, SearchData
from paceline.executor.local import LocalExecutor
from paceline.executor.protocol import PackExecutor
from paceline.executor.remote.contract import ContractRecipe
from paceline.executor.remote.driver import RemoteExecutor
from paceline.executor.remote.host import Host, HostOptions
from paceline.executor.remote.in_process import InProcessPool
from paceline.executor.testing import Data, PackExecutorContract
from paceline.program.numbers import number_settings, set_numbers

OPTIONS = PackOptions(2, "stacked")


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
        recipe = ContractRecipe(found, self.batch_size)

        def make() -> Any:
            return Host(recipe, HostOptions(OPTIONS), own_process=False)

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
    recipe = ContractRecipe(search_data(data, data), numbers=json.loads(json.dumps(wanted)))
    try:
        host = Host(recipe, HostOptions(OPTIONS))
        assert number_settings() == wanted
        host.close()
    finally:
        set_numbers(own)
    assert number_settings() == own
