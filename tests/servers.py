"""A PostgreSQL server of one test session: its own folder, port and password, on loopback."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

USER = "paceline"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "16MB",
    "max_connections": "40",
}
#: The machine itself does not die in these tests, so nothing need be synced to its disk.
_UNSYNCED = {"fsync": "off", "full_page_writes": "off"}


def found(name: str) -> str | None:
    """A program of PostgreSQL's server: Debian keeps them off the path."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name) or next(
        (str(folder / name) for folder in places if (folder / name).is_file()), None
    )


class PostgreSQL:
    """A server; ``start`` and ``stop`` it as often as a test likes.

    Args:
        synced: Whether it writes to the disk itself, as a server should; tests need not wait.

    Attributes:
        password: Of its one user, made up for this session.
    """

    def __init__(self, *, synced: bool = False) -> None:
        self._settings = {**_SETTINGS, **({} if synced else _UNSYNCED)}
        self.password = f"pw-{secrets.token_hex(8)}"
        self._folder = Path(tempfile.mkdtemp(prefix="paceline-postgresql-"))
        self._user = _unprivileged()
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._server: subprocess.Popen[bytes] | None = None
        self._n_databases = 0
        secret = self._folder / "password"
        secret.write_text(self.password)
        secret.chmod(0o644)
        initdb, data = found("initdb"), self._folder / "data"
        assert initdb is not None
        self._run(initdb, "-D", data, "-U", USER, "-A", "scram-sha-256", "--pwfile", secret, "-N")
        secret.unlink()

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        postgres = found("postgres")
        assert postgres is not None
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [postgres, "-D", self._folder / "data", f"--port={self._port}", *settings],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                user=self._user,
            )
        for _ in range(200):
            try:
                self._connect("postgres").close()
                return
            except Exception:  # not yet
                assert self._server.poll() is None, (self._folder / "log").read_text()
                time.sleep(0.05)
        raise TimeoutError((self._folder / "log").read_text())

    def stop(self) -> None:
        """Stops the server as a power cut would; its data stay."""
        if self._server is not None:
            self._server.send_signal(3)  # immediate shutdown, its children included
            self._server.wait(30)
            self._server = None

    def database(self) -> str:
        """Makes an empty database and returns its URL, password included."""
        self._n_databases += 1
        name = f"test{self._n_databases}"
        with self._connect("postgres") as connection:
            connection.autocommit = True
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self._port}/{name}"

    def connections(self, url: str) -> int:
        """How many are open to a database of ``database``."""
        name = url.rpartition("/")[2]
        with self._connect("postgres") as connection:
            found = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = %s", (name,)
            ).fetchone()
        return 0 if found is None else int(found[0])

    def remove(self) -> None:
        """Ends it all."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _connect(self, database: str):
        import psycopg

        return psycopg.connect(
            host="127.0.0.1",
            port=self._port,
            user=USER,
            password=self.password,
            dbname=database,
            connect_timeout=5,
        )

    def _run(self, *command: object) -> None:
        done = subprocess.run(
            [str(word) for word in command],
            check=False,
            cwd=self._folder,
            user=self._user,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def _unprivileged() -> str | None:
    """Whom the server runs as: PostgreSQL refuses root."""
    return "nobody" if os.geteuid() == 0 else None
