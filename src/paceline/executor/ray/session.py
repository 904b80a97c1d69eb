"""The connection to a Ray cluster: one that is there, or one of this machine for one search."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import secrets
import signal
import socket
import stat
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax

from paceline.errors import ClusterError, MissingExtraError, UsageError
from paceline.executor.ray.settings import RaySettings

_MODE, _TOKEN, _PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
#: Seconds within which a cluster's head must answer.
_REACH = 10.0
#: Seconds within which a head that has answered before must answer again.
_ANSWERS = 2.0
#: Seconds within which Ray must end in this process, where the head does not answer.
_LEAVES = 10.0
#: How HTTP/2 begins, which a head's gRPC speaks: the preface, and a frame of no settings.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
#: Bytes of Ray's store of objects beside what the search sends.
_STORE = 200_000_000
#: The token of clusters that this process starts; Ray reads it once in a process.
_token = ""
#: Whether a thread of this process waits in Ray for a head that is silent, for good.
_stuck = False


class RaySession:
    """A connection to a cluster, until it is closed.

    The search sends ``data_bytes`` to each machine. Raises MissingExtraError if Ray is not
    installed. Raises UsageError if the cluster would be open to anybody, or the address is of
    another kind. Raises ClusterError if the cluster cannot be reached.
    """

    def __init__(self, settings: RaySettings, data_bytes: int, note: Callable[[str], None]) -> None:
        self._note = note
        address = settings.address or os.environ.get("RAY_ADDRESS") or None
        if address is not None and address.startswith("ray://"):
            raise UsageError(
                f"address must not be of Ray Client, got {address!r}. Run the search on a machine "
                "of the cluster, for instance with `ray job submit`, and pass the address without "
                "ray://, or 'auto'."
            )
        found = find_spec("ray")
        if found is None or found.origin is None:  # a folder of that name is not a package
            raise MissingExtraError(
                "executor: 'ray' needs Ray, which is not installed. Run pip install "
                '"paceline[ray]" here and on all machines of the cluster.'
            )
        if _stuck:
            raise ClusterError(
                "executor: Ray in this process waits for the head of another cluster, which does "
                "not respond. Restart Python (in a notebook: the kernel)."
            )
        on_cpu()
        self._before: dict[str, str | None] = {}
        # Whether the cluster is of this machine, for this search alone.
        self.started = address is None and not _is_running()
        if self.started:
            self._protect()
        elif not _is_running():
            check_protection(address or "", note)
        import ray  # pyright: ignore[reportMissingImports]

        self.ray: Any = ray  # the module
        self._joined, self._head = False, ""
        if ray.is_initialized():
            return
        try:
            with _process_kept():
                if self.started:
                    self._start(data_bytes)
                else:
                    self._join(address or "")
        except BaseException:
            self._restore()
            raise

    def _start(self, data_bytes: int) -> None:
        with _loopback_kept():
            self.ray.init(
                address="local",  # never one that another process has left
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=_STORE + 2 * data_bytes,
                _node_ip_address="127.0.0.1",
            )
        self._joined = True

    def _join(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        try:
            if host and port.isdigit():  # else Ray tries for minutes
                _ask(host, int(port), _REACH)
            self.ray.init(address=address, log_to_driver=False, configure_logging=False)
        except Exception as error:  # Ray raises many kinds
            raise ClusterError(
                f"executor: there is no Ray cluster at {address!r} ({type(error).__name__}: "
                f"{error}). Start one with `ray start --head`, or leave out address and "
                "RAY_ADDRESS for a cluster on this machine."
            ) from error
        self._joined = True
        self._note(
            f"joined the Ray cluster at {address}. To turn off its usage statistics, set "
            "RAY_USAGE_STATS_ENABLED=0 where it is started"
        )

    def head_answers(self) -> bool:
        """Whether the cluster's head can be reached.

        Every call of Ray that needs the head would wait for it, and after a minute Ray ends this
        process without notice. So this asks the network, not Ray.
        """
        if not self._head:
            self._head = self.ray.get_runtime_context().gcs_address
        host, _, port = self._head.rpartition(":")
        try:
            _ask(host, int(port), _ANSWERS)
        except OSError:
            return False
        return True

    def leaving(self) -> set[str]:
        """The ids of nodes that will go soon: an autoscaler or a cloud has drained them.

        Ray has no public call for that. Its own libraries use this one. In a version without it no
        node leaves early, and a drained node counts as dead.
        """
        try:
            from ray._private.state import state  # pyright: ignore[reportMissingImports]

            return set(state.get_draining_nodes())
        except (ImportError, AttributeError):
            return set()

    def _protect(self) -> None:
        """Has Ray's processes ask for a token, send no statistics, and serve no dashboard."""
        global _token
        _token = _token or secrets.token_hex(32)
        wanted = {"RAY_USAGE_STATS_ENABLED": "0"}
        if _MODE not in os.environ:
            wanted[_MODE] = "token"
            if not os.environ.get(_TOKEN) and not os.environ.get(_PATH):
                wanted[_TOKEN] = _token
        for name, value in wanted.items():
            self._before[name] = os.environ.get(name)
            os.environ[name] = value

    def close(self) -> None:
        """Leaves the cluster; one that was started for this search ends."""
        if self._joined:
            self._joined = False
            with _process_kept():
                self._leave()
        self._restore()

    def _leave(self) -> None:
        """Ends Ray in this process, which waits without an end for a head that is silent."""
        if self.started or self.head_answers():
            self.ray.shutdown()
            return
        leaving = threading.Thread(target=self.ray.shutdown, daemon=True)
        leaving.start()
        leaving.join(_LEAVES)
        if leaving.is_alive():
            _end_without_ray(self.ray)
            self._note(
                "Ray keeps its cluster in this process. Restart Python before you use another "
                "cluster"
            )

    def _restore(self) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before.clear()


def check_protection(
    address: str,
    note: Callable[[str], None],
    environment: Mapping[str, str] = os.environ,
    home: Path | None = None,
) -> None:
    """Checks that it was decided who may use a cluster that is to be joined.

    ``note`` is told of a token that others could read. ``home`` is the user's folder.
    """
    if environment.get(_MODE, "").lower() not in ("token", "disabled"):
        raise UsageError(
            f"executor: anyone who can reach the Ray cluster at {address!r} can run code on it, "
            f"and {_MODE} is not set. Set {_MODE}=token, here and where the cluster is started, "
            f"or {_MODE}=disabled if only trusted users can reach its network."
        )
    path = Path(environment.get(_PATH) or (home or Path.home()) / ".ray" / "auth_token")
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            path.chmod(0o600)
            note(f"other users could read {path} (mode {mode:o}), so its mode is now 600")


def on_cpu() -> None:
    """Has JAX of this process run on the CPU: workers train, and an accelerator has one process.

    Raises UsageError if JAX has begun with an accelerator already.
    """
    if not jax.config.jax_platforms:  # type: ignore[attr-defined]
        jax.config.update("jax_platforms", "cpu")
    found = jax.default_backend()
    if found != "cpu":
        raise UsageError(
            f"executor: JAX already uses the {found} in this process, but a worker needs it "
            "alone. Restart Python (in a notebook: the kernel), and set JAX_PLATFORMS=cpu first: "
            "only the workers train."
        )


def _ask(host: str, port: int, seconds: float) -> None:
    """Has a head say something: that it accepts a connection is the word of its machine alone.

    Raises OSError if it cannot be reached, or is silent for so long.
    """
    connection = socket.create_connection((host.strip("[]"), port), seconds)
    # One that wants TLS may refuse what it hears: it is there.
    with connection, contextlib.suppress(ConnectionError):
        connection.sendall(_HELLO)
        connection.recv(1)


def _end_without_ray(ray: Any) -> None:
    """Has this process end although a thread of it waits in Ray.

    Ray would wait once more when an error or the end of Python ends the process. C++ then frees
    objects that this thread uses, and the process would end by SIGSEGV.
    """
    global _stuck
    _stuck = True
    atexit.unregister(ray.shutdown)
    if getattr(sys.excepthook, "__module__", "").partition(".")[0] == "ray":
        sys.excepthook = sys.__excepthook__
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "on_exit"):  # of glibc; it hands the exit code on
            libc.on_exit(libc._exit, None)


def _is_running() -> bool:
    """Whether this process is connected to a cluster already; Ray is not imported to find out."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


@contextmanager
def _loopback_kept() -> Iterator[None]:
    """A block in which Ray takes the loopback's address as it is.

    It would put that of a network in its place, and listen on all interfaces. There is no option
    against that. A version without these functions still asks for a token.
    """
    try:
        from ray._private import services  # pyright: ignore[reportMissingImports]

        before = services.resolve_ip_for_localhost
    except (ImportError, AttributeError):
        yield
        return
    services.resolve_ip_for_localhost = lambda host: host
    try:
        yield
    finally:
        services.resolve_ip_for_localhost = before


@contextmanager
def _process_kept() -> Iterator[None]:
    """A block after which SIGTERM does what it did: Ray would end the process without saving."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings():
            # Its processes are begun by a fork that is followed by exec: no lock matters.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
