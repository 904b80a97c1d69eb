"""What runs in a process of its own on a machine of a Ray cluster."""

from __future__ import annotations

import os
import socket
from typing import Any

from paceline.errors import UsageError


class RayWorker:
    """A machine's half of a search; an actor. Nothing heavy is loaded before ``hello``.

    ``on_gpu``: whether Ray has given the process a GPU.
    """

    def __init__(self, on_gpu: bool) -> None:
        if not on_gpu and "JAX_PLATFORMS" not in os.environ and not _has_tpu():
            os.environ["JAX_PLATFORMS"] = "cpu"  # not a GPU that other processes use
        self._host: Any = None

    def ping(self) -> tuple[str, str]:
        """The name of the machine, and Ray's id of it: Ray has found a place for the process."""
        import ray  # pyright: ignore[reportMissingImports]

        return socket.gethostname(), ray.get_runtime_context().get_node_id()

    def is_alive(self) -> bool:
        """Whether the process runs; called beside an order, which may take as long as it needs."""
        return True

    def hello(self, packed: Any, options: Any) -> Any:
        """Takes the job factory, from ``serialization.pack``, and options; returns ``HostFacts``.

        Raises UsageError if the machine is part of a TPU slice of several hosts.
        """
        hosts = [name for name in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]
        if len(hosts) > 1:
            raise UsageError(
                f"executor: worker on {socket.gethostname()} is one of {len(hosts)} hosts of a "
                "TPU slice, but a worker needs a slice of one host. Use slices such as "
                "v5litepod-8."
            )
        from paceline.executor.ray.serialization import unpack
        from paceline.executor.remote.host import Host

        self._host = Host(unpack(packed), options)
        return self._host.hello()

    def round(self, order: Any) -> Any:
        """As ``Host.round``."""
        return self._host.round(order)


def _has_tpu() -> bool:
    return os.path.exists("/dev/accel0") or os.path.exists("/dev/vfio/0")
