"""What every executor of packs must do, on this machine and on others."""

from __future__ import annotations

from typing import Any

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
