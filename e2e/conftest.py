"""A lab, a browser, and a page that talks to nobody else."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESK, PHONE = (1280, 900), (390, 844)


@contextlib.contextmanager
def lab(*flags: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`gevit app` on a free port: its address and its process, which is stopped in the end."""
    command = [sys.executable, "-m", "gevit", "app", "--port", "0", "--no-browser", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found, line + (process.communicate()[1] if not line else "")
        try:
            yield found.group(), process
        finally:  # a test that fails must not wait for it for ever
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=20)


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    with lab() as (address, _):
        yield address


@contextlib.contextmanager
def launched() -> Iterator[Browser]:
    """A Chromium without a window."""
    names = [os.environ.get("CHROMIUM", ""), *BROWSERS]
    path = next((found for name in names if name and (found := shutil.which(name))), None)
    assert path, "no Chromium: run e2e/setup.sh"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@contextlib.contextmanager
def opened(
    browser: Browser, address: str, size: tuple[int, int] = DESK, scheme: str = "light", touch: bool = False
) -> Iterator[Page]:
    """The page of a lab with its first answers; asks no other host, and has no errors of its own."""
    asked: set[str] = set()
    problems: list[str] = []
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
        has_touch=touch,
        accept_downloads=True,
    )
    context.set_default_timeout(30_000)
    context.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    # A refused upload is a failed request to the browser; what our own code says is not expected.
    page.on(
        "console",
        lambda message: (
            problems.append(message.text)
            if message.type in ("error", "warning") and "Failed to load resource" not in message.text
            else None
        ),
    )
    page.goto(address)
    page.wait_for_selector(".card[data-change]")
    yield page
    context.close()
    assert asked == {urlsplit(address).netloc}
    assert not problems


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with opened(browser, address) as page:
        yield page


@pytest.fixture
def digit(tmp_path: Path) -> Path:
    """A picture of a 2."""
    from PIL import Image

    from gevit.data import load_digits

    path = tmp_path / "two.png"
    Image.fromarray(load_digits()[0][1200, 0].numpy()).save(path)
    return path
