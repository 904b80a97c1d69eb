"""The dashboard in a browser: open it, see a trial end, press fail, see it honoured."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import paceline
import toys
from as_optuna import optuna_study
from browser import LAPTOP, PHONE, open_page, wait_until

pytest.importorskip("optuna_dashboard")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("searched")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """A search in a thread of its own, and the address of its dashboard."""
    ended = threading.Event()

    def slow(hp: Any) -> Any:
        model = toys.dense(hp)
        time.sleep(0.05)
        return model

    tuner = paceline.Tuner(
        slow,
        study="s",
        sampler="random",
        parallel_trials=4,
        directory=folder / "runs",
        on_progress=lambda progress: not ended.is_set(),
        on_note=lambda text: None,
    )
    search = threading.Thread(
        target=lambda: tuner.search(
            *toys.data(), **{**toys.CALL, "epochs": 100_000}, n_trials=4, verbose=0
        )
    )
    search.start()
    try:
        deadline = time.monotonic() + 60
        while not optuna_trials(folder):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        command = [sys.executable, "-m", "paceline", "dashboard", "s", "--port", "0"]
        with subprocess.Popen(
            [*command, "--no-browser"], cwd=folder, stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None
            line = server.stdout.readline()
            found = re.match(r"http://127\.0\.0\.1:\d+/", line)
            assert found, line
            try:
                yield found[0]
            finally:
                server.terminate()
    finally:
        ended.set()
        search.join(120)
        assert not search.is_alive()


def optuna_trials(folder: Path) -> list[Any]:
    try:
        return optuna_study(runs=folder / "runs").trials
    except (KeyError, OSError):
        return []


def test_a_trial_that_is_failed_in_the_dashboard_ends(address, folder, tmp_path) -> None:
    with open_page(address) as page:
        page.wait_for_selector(".pack .slot progress")
        assert page.locator(".slot").count() == 4
        assert "running" in page.locator("#state").inner_text()
        wait_until(page, "document.querySelector('.slot progress').value >= 1")
        first = page.locator(".slot").first.inner_text()
        number = int(re.match(r"trial (\d+)", first)[1])  # type: ignore[index]
        page.screenshot(path=str(tmp_path / "packs.png"))
        page.get_by_text("Trials and figures").click()
        page.wait_for_url("**/dashboard/studies/0")
        page.goto(f"{address}dashboard/studies/0/trials?numbers={number}")
        page.get_by_role("button", name="Fail Trial").click(timeout=20_000)
        page.screenshot(path=str(tmp_path / "failed.png"))
        deadline = time.monotonic() + 30
        while True:
            trial = next(t for t in optuna_trials(folder) if t.number == number)
            if trial.state.name == "FAIL":
                break
            assert time.monotonic() < deadline, trial
            time.sleep(0.2)
        page.goto(address)
        slots = "[...document.querySelectorAll('.slot')]"
        gone = f"!{slots}.some(e => /trial {number}:/.test(e.innerText))"
        wait_until(page, f"{slots}.length > 0 && {gone}")


@pytest.mark.parametrize("width", [PHONE, LAPTOP])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_packs_is_readable(address, tmp_path, width, scheme) -> None:
    with open_page(address, width, scheme) as page:
        page.wait_for_selector(".pack .slot progress")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=str(tmp_path / "packs.png"), full_page=True)
        page.get_by_text("Report", exact=True).click()
        page.wait_for_selector("#verdict")
