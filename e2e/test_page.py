"""The page as a whole: for everybody, on every screen, and gone when the lab is."""

from __future__ import annotations

import re
import signal
import time

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from e2e.conftest import DESK, PHONE, lab, opened
from e2e.driving import wait_for_answers

TABS = ("turn", "inside", "examine")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_axe_finds_nothing_serious(browser: Browser, address: str, size: tuple[int, int], scheme: str) -> None:
    with opened(browser, address, size, scheme) as page:
        page.wait_for_selector("#polars[data-whole]")
        for tab in TABS:
            page.click(f"#tab-{tab}")
            if tab == "inside":
                page.wait_for_selector("#attention-number[data-error]")
            if tab == "examine":
                page.select_option("#count", "20")
                page.click("#start")
                page.wait_for_selector("#findings:not([hidden])", timeout=60_000)
            violations = Axe().run(page).response["violations"]
            serious = [
                (found["id"], [node["target"] for node in found["nodes"]])
                for found in violations
                if found["impact"] in ("serious", "critical")
            ]
            assert not serious, tab
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), tab


def test_tabs_by_keyboard(page: Page) -> None:
    page.focus("#tab-turn")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#inside")).to_be_visible()
    expect(page.locator("#tab-inside")).to_be_focused()
    expect(page.locator("#tab-inside")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#turn")).to_be_visible()


def test_focus_shows_on_the_button_that_a_key_would_press(page: Page) -> None:
    for name in page.locator("input.unseen").evaluate_all("inputs => inputs.map(input => input.id)"):
        assert page.locator(f"#{name} + label").get_attribute("for") == name


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_nothing_else_moves_while_the_dial_does(browser: Browser, address: str, size: tuple[int, int]) -> None:
    tops = "['cards', 'verdict', 'polars'].map(id => document.getElementById(id).getBoundingClientRect().top + scrollY)"
    with opened(browser, address, size) as page:
        upright = page.evaluate(tops)
        for button in ("#left", "#flip", "[data-shift='1,0']"):
            page.click(button)
            wait_for_answers(page)
            assert page.evaluate(tops) == upright, button


def test_what_is_seen_is_also_said(page: Page) -> None:
    page.click("#left")
    said = r"At 90 degrees\. Equivariant: 4, [\d.]+%, as upright\. GSA twin: .*, not as upright\. Plain: "
    expect(page.locator("#spoken")).to_contain_text(re.compile(said))
    page.wait_for_selector("#polars[data-whole]")
    expect(page.locator("#error svg.rose")).to_have_attribute("aria-label", re.compile(r"Equivariant from 0% to \d+%"))


def test_ctrl_c_with_a_page_open_is_quick_and_the_page_says_so(browser: Browser) -> None:
    with lab() as (address, process), opened(browser, address) as page:
        page.wait_for_selector("#polars[data-whole]")
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert time.monotonic() - start < 10  # it takes about a second
        assert (process.returncode, out, err) == (0, "stopped\n", "")
        page.click("#left")
        expect(page.locator("#problem")).to_contain_text("the lab does not answer: was it stopped?")
