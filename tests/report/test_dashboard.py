"""The dashboard's application and server: what it answers, and to whom."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.errors import UsageError
from paceline.report.dashboard.app import DashboardApp, make_server, state_json
from paceline.report.progress import (
    LATELY,
    LIVE,
    WATCHED,
    LivePack,
    LiveSlot,
    LiveState,
    Progress,
    read_live,
    watch,
)
from subjects import HOSTILE, subject_of

NOW = LiveState(
    at=0.0,
    progress=Progress("s", "training", 8, 3, 0, 0, 0, 0, 0.0, None, None, "value"),
    packs=[LivePack("ab12", "vectorized", [LiveSlot(4, 2, 10, 0.5), None])],
    notes=[HOSTILE],
)


def write_live(folder: Path, state: LiveState) -> None:
    """Writes a state as a search does."""
    (folder / LIVE).write_bytes(msgspec.json.encode(state))


def inner(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """Stands for optuna-dashboard."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"inner {environ['REQUEST_METHOD']} {environ['PATH_INFO']}".encode()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "runs" / "s"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def port(folder: Path) -> Iterator[int]:
    app = DashboardApp("s", folder, inner, lambda: subject_of(12), every=0.05, study_id=7)
    with served(app) as found:
        yield found


@contextmanager
def served(app: DashboardApp) -> Iterator[int]:
    with make_server(app, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def ask(port: int, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode(), response
    finally:
        connection.close()


def test_it_listens_on_the_loopback_address_alone(folder) -> None:
    app = DashboardApp("s", folder, inner, lambda: subject_of(1))
    with make_server(app, 0) as server:
        assert server.server_address[0] == "127.0.0.1"


def test_our_page_its_files_and_everything_else(port) -> None:
    status, text, response = ask(port)
    assert (status, "<h2>Packs</h2>" in text) == (200, True)
    assert '<a href="/dashboard/studies/7">' in text
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
    for path in ("/paceline/dashboard.js", "/paceline/dashboard.css"):
        assert ask(port, path)[0] == 200
    assert ask(port, "/dashboard/studies/0")[1] == "inner GET /dashboard/studies/0"
    assert ask(port, "/api/trials", "POST")[1] == "inner POST /api/trials"
    status, text, _ = ask(port, "/paceline/report")
    assert (status, "Verdict" in text) == (200, True)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "", "127.0.0.1:1"]
)
def test_a_host_that_is_not_this_server_is_refused(port, host) -> None:
    for path in ("/", "/paceline/events", "/api/studies"):
        status, text, _ = ask(port, path, Host=host.format(port=port))
        assert (status, text) == (403, "This server answers only requests to localhost.")


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}"])
def test_this_servers_own_names_are_answered(port, host) -> None:
    assert ask(port, Host=host.format(port=port))[0] == 200


def test_a_page_of_another_server_changes_nothing(port) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert ask(port, "/api/trials", method, Origin="http://evil.example")[0] == 403
        assert ask(port, "/api/trials", method, Origin="null")[0] == 403
        own = f"http://127.0.0.1:{port}"
        assert ask(port, "/api/trials", method, Origin=own)[1] == f"inner {method} /api/trials"


def events(port: int, n: int) -> list[dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/paceline/events")
        response = connection.getresponse()
        assert response.headers["Content-Type"] == "text/event-stream"
        found = []
        while len(found) < n:
            line = response.readline().decode()
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
        return found
    finally:
        connection.close()


def test_events_tell_what_the_search_does(port, folder) -> None:
    write_live(folder, msgspec.structs.replace(NOW, at=time.time()))
    first, second = events(port, 2)
    assert first["study"] == "s"
    assert first["running"]
    assert first["state"]["packs"] == [
        {
            "program": "ab12",
            "plan": "vectorized",
            "slots": [{"trial": 4, "epoch": 2, "epochs": 10, "value": 0.5}, None],
        }
    ]
    assert second["state"] == first["state"]
    assert (folder / WATCHED).exists()


def test_a_study_without_a_search_says_so(port) -> None:
    (found,) = events(port, 1)
    assert found == {"study": "s", "running": False, "state": None}


def test_a_search_that_wrote_long_ago_does_not_run(folder) -> None:
    write_live(folder, msgspec.structs.replace(NOW, at=time.time() - 2 * LATELY))
    assert not json.loads(state_json("s", folder))["running"]
    done = replace(NOW.progress, phase="done")
    write_live(folder, msgspec.structs.replace(NOW, at=time.time(), progress=done))
    assert not json.loads(state_json("s", folder))["running"]


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b'{"at":"x","progress":{}}', b'{"at":1}', b"\xff", b"[" * 100_000]
)
def test_a_state_of_a_stranger_is_none(folder, text) -> None:
    (folder / LIVE).write_bytes(text)
    assert read_live(folder) is None


def test_watching_a_study_that_is_not_there_makes_nothing(tmp_path) -> None:
    watch(tmp_path / "runs" / "gone")
    assert not (tmp_path / "runs" / "gone").exists()


def test_a_port_that_is_taken_is_named(port, folder) -> None:
    app = DashboardApp("s", folder, inner, lambda: subject_of(1))
    with pytest.raises(UsageError, match=rf"--port {port}: .*. Use another port, or 0"):
        make_server(app, port)
