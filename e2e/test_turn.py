"""Turn: the answers of the models as an image moves, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from e2e.conftest import PHONE, opened
from e2e.driving import (
    answers,
    drag_dial,
    draw_seven,
    drop,
    held,
    largest_change,
    probabilities,
    wait_for_angle,
    wait_for_answers,
)
from gevit.pretrained import pretrained_path

SAME = 1e-4


@pytest.mark.parametrize("how", ["button", "drag", "keyboard"])
def test_at_90_degrees_the_equivariant_bars_stay_and_the_others_move(page: Page, how: str) -> None:
    upright = probabilities(page)
    if how == "button":
        page.click("#left")
    elif how == "drag":
        drag_dial(page, 88)  # near a quarter turn it snaps
    else:
        page.focus("#dial svg")
        page.keyboard.press("PageUp")
    wait_for_angle(page, 90)
    equivariant, twin, plain = largest_change(upright, probabilities(page))
    assert equivariant < SAME
    assert twin > SAME
    assert plain > SAME
    expect(page.locator(".card.equivariant .change")).to_contain_text("Answer moved by 0")
    expect(page.locator("#dial svg")).to_have_attribute("aria-valuetext", "90 degrees, a quarter turn: exact")


def test_between_quarter_turns_everything_may_move(page: Page) -> None:
    upright = probabilities(page)
    drag_dial(page, 40)
    wait_for_angle(page, 40)
    assert all(change > SAME for change in largest_change(upright, probabilities(page)))
    expect(page.locator("#verdict")).to_contain_text("Between quarter turns")


def test_arrow_keys_turn_by_a_degree(page: Page) -> None:
    page.focus("#dial svg")
    page.keyboard.press("ArrowLeft")
    wait_for_angle(page, 1)
    page.keyboard.press("Shift+ArrowRight")
    wait_for_angle(page, 346)
    page.click("#reset")
    wait_for_angle(page, 0)


def test_flip_and_shift(page: Page) -> None:
    page.click("#flip")
    wait_for_angle(page, 0, flip=1)
    expect(page.locator(".card.equivariant .change")).to_contain_text("a flip is not among its 4 rotations")
    page.click("#flip")
    wait_for_angle(page, 0)
    before = page.evaluate("document.querySelector('#dial canvas').toDataURL()")
    page.click("[data-shift='1,0']")
    expect(page.locator("#verdict")).not_to_contain_text("Drag the blue knob")
    after = page.evaluate("document.querySelector('#dial canvas').toDataURL()")
    assert before != after


def test_a_model_whose_encoding_breaks_the_symmetry_of_its_group(page: Page, digit: Path) -> None:
    weights = pretrained_path("r4_sa", "nano", "digits-upright-gsa")
    page.click("#tab-examine")
    page.set_input_files("#checkpoint", [weights, weights.with_suffix(".json")])
    page.wait_for_selector("#subject[data-loaded]")
    page.click("#tab-turn")
    page.click("#kinds >> text=Your r4_sa")
    expect(page.locator(".card h2")).to_have_text(["Your model"])
    drop(page, digit)
    page.click("#left")
    wait_for_angle(page, 90)
    expect(page.locator(".card .change")).to_contain_text("in its group, but its layers do not commute with it")
    expect(page.locator("#verdict")).to_contain_text("its positional encoding, that of GSA-Nets, breaks the symmetry")


def test_drawing(page: Page) -> None:
    draw_seven(page)
    expect(page.locator("#samples [aria-pressed=true]")).to_have_count(0)
    wait_for_answers(page)
    expect(page.locator(".card.plain .says b")).to_have_text("7")
    upright = probabilities(page)
    page.click("#left")
    wait_for_angle(page, 90)
    equivariant, _, plain = largest_change(upright, probabilities(page))
    assert equivariant < SAME
    assert plain > SAME


def test_dropping_and_opening_a_file(page: Page, digit: Path) -> None:
    drop(page, digit)
    expect(page.locator(".card.plain .says b")).to_have_text("2")
    assert answers(page) == ["2", "2", "2"]
    page.click("[data-image=sample4]")
    expect(page.locator(".card.plain .says b")).to_have_text("4")
    page.set_input_files("#file", digit)
    expect(page.locator(".card.plain .says b")).to_have_text("2")


def test_what_was_chosen_last_stays_when_an_earlier_answer_is_late(page: Page, digit: Path) -> None:
    late = held(page, "**/scenes/digits/images", lambda: drop(page, digit))
    page.click("[data-image=sample3]")
    expect(page.locator(".card.plain .says b")).to_have_text("3")
    late.continue_()
    wait_for_answers(page)
    expect(page.locator("[data-image=sample3]")).to_have_attribute("aria-pressed", "true")
    assert answers(page) == ["3", "3", "3"]


def test_a_sample_chosen_right_after_drawing_stays(page: Page) -> None:
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if "drawn" in request.url else None)
    late = held(page, "**/scenes/digits/images?drawn=1", lambda: draw_seven(page))
    page.click("[data-image=sample3]")
    late.continue_()
    page.wait_for_timeout(500)  # in which what is still to be sent is sent
    assert len(sent) == 1
    expect(page.locator("[data-image=sample3]")).to_have_attribute("aria-pressed", "true")


def test_an_answer_that_fails_does_not_hold_up_the_next(page: Page) -> None:
    wait_for_answers(page)
    page.focus("#dial svg")
    late = held(page, "**/turn?*", lambda: page.keyboard.press("ArrowLeft"))
    page.keyboard.press("ArrowLeft")
    late.fulfill(status=503, json={"error": "the lab is busy"})
    wait_for_angle(page, 2)
    expect(page.locator("#problem")).to_be_hidden()


def test_bad_uploads_give_readable_messages(page: Page, digit: Path, tmp_path: Path) -> None:
    text, cut = tmp_path / "notes.txt", tmp_path / "cut.png"
    text.write_text("hello")
    cut.write_bytes(digit.read_bytes()[:150])
    for path, words in ((text, "no image of a known format"), (cut, "cannot be read")):
        drop(page, path)
        expect(page.locator("#problem")).to_contain_text(f"{path.name}: this image cannot be read")
        expect(page.locator("#problem")).to_contain_text(words)
    drop(page, digit)  # the page goes on
    expect(page.locator(".card.plain .says b")).to_have_text("2")
    expect(page.locator("#problem")).to_be_hidden()


def test_the_full_turn_is_drawn_and_played(page: Page) -> None:
    page.wait_for_selector("#polars[data-whole]")
    assert page.locator("#probability path").count() == page.locator("#error path").count() == 3
    for path in page.locator("#probability path").all():
        assert (path.get_attribute("d") or "").count("L") == 71
    page.click("#play")
    expect(page.locator("#turn")).not_to_have_attribute("data-shown", "0 0")
    page.click("#play")


def test_touch_on_a_phone(browser: Browser, address: str) -> None:
    with opened(browser, address, PHONE, touch=True) as page:
        upright = probabilities(page)
        page.locator("#dial svg").scroll_into_view_if_needed()
        box = page.locator("#dial svg").bounding_box()
        assert box
        page.touchscreen.tap(box["x"] + 0.13 * box["width"], box["y"] + 0.5 * box["height"])
        wait_for_angle(page, 90)
        assert largest_change(upright, probabilities(page))[0] < SAME
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
