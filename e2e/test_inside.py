"""Look inside: feature maps and attention, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from e2e.driving import wait_for_answers

ROUNDING = 1e-4


@pytest.fixture
def inside(page: Page) -> Page:
    page.click("#tab-inside")
    page.wait_for_selector("#attention-number[data-error]")
    return page


def error(page: Page, what: str) -> float:
    return float(page.locator(f"#{what}-number").get_attribute("data-error") or "nan")


def test_maps_of_the_equivariant_model_follow_and_those_of_the_others_do_not(inside: Page) -> None:
    assert inside.locator("#maps tbody tr").count() == 4
    assert error(inside, "maps") < ROUNDING
    assert error(inside, "attention") < ROUNDING
    for name in ("GSA twin", "Plain"):
        inside.get_by_role("radio", name=name).click()
        expect(inside.locator("#maps-number")).to_have_class("number other")
        expect(inside.locator("#attention-number")).to_have_class("number other")
        assert error(inside, "maps") > 1e-2


def test_pointing_at_a_pixel(inside: Page) -> None:
    inside.locator("#target").scroll_into_view_if_needed()
    box = inside.locator("#target").bounding_box()
    assert box
    inside.mouse.click(box["x"] + 0.93 * box["width"], box["y"] + 0.07 * box["height"])
    expect(inside.locator("#target")).to_have_attribute("data-pixel", "0,6")
    expect(inside.locator("#pixel")).to_contain_text("row 1, column 7 of the 7 x 7 pixels")
    wait_for_answers(inside)
    before = picture(inside)
    inside.focus("#target")
    inside.keyboard.press("ArrowDown")
    expect(inside.locator("#target")).to_have_attribute("data-pixel", "1,6")
    assert picture(inside) != before
    assert error(inside, "attention") < ROUNDING


def test_layers_elements_and_channels(inside: Page) -> None:
    inside.select_option("#layer", "lifting")
    expect(inside.locator("#maps-number")).to_contain_text("of lifting")
    inside.get_by_role("radio", name="180°").click()
    expect(inside.locator("#maps tbody")).to_contain_text("180°")
    assert error(inside, "maps") < ROUNDING
    inside.select_option("#channel", "2")
    expect(inside.locator("#channel")).to_have_value("2")


def picture(page: Page) -> str:
    found: str = page.evaluate("document.querySelector('#attention-still canvas').toDataURL()")
    return found
