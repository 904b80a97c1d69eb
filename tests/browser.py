"""Headless Chromium for tests of pages: `make test-ui` installs what they need."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

#: Widths in CSS pixels: a phone, a laptop.
PHONE, LAPTOP = 390, 1280

# A machine without a network must not be asked for one; root may not use Chromium's sandbox.
_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def open_page(
    address: str, width: int = LAPTOP, scheme: Literal["light", "dark"] = "light"
) -> Iterator[Page]:
    """Opens an address (`file://` or `http://`) in a new browser.

    An error that the page logs or raises fails the test.
    """
    api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium here: `make test-ui` installs it")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=_ARGS)
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        errors: list[str] = []

        def note(text: str) -> None:
            errors.append(f"{page.url}: {text}")

        page.on("pageerror", lambda error: note(str(error)))
        page.on("console", lambda line: note(line.text) if line.type == "error" else None)
        page.goto(address)
        yield page
        browser.close()
        assert not errors, errors


def wait_until(page: Page, expression: str, seconds: float = 30.0) -> None:
    """Waits until an expression is true; ``wait_for_function`` asks the page for ``eval``."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"not within {seconds} seconds: {expression}"
        page.wait_for_timeout(100)
