"""What a person does with the page, and what they see."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, Route


def probabilities(page: Page) -> list[list[float]]:
    """The bars of each model."""
    found: list[list[float]] = page.evaluate(
        "[...document.querySelectorAll('.card')].map(card =>"
        " [...card.querySelectorAll('[data-probability]')].map(bar => Number(bar.dataset.probability)))"
    )
    return found


def largest_change(before: list[list[float]], after: list[list[float]]) -> list[float]:
    """Of each model."""
    return [max(abs(x - y) for x, y in zip(*bars, strict=True)) for bars in zip(before, after, strict=True)]


def wait_for_angle(page: Page, angle: int, flip: int = 0) -> None:
    """Wait until the bars are those of this angle."""
    page.wait_for_selector(f'#turn[data-shown="{angle} {flip}"]')


def wait_for_answers(page: Page) -> None:
    """Wait until the page waits for nothing."""
    page.wait_for_selector('html[data-waiting="0"]')


def drag_dial(page: Page, degrees: float) -> None:
    """Drag the knob from the top to this angle, counter-clockwise."""
    box = page.locator("#dial svg").bounding_box()
    assert box
    x, y, radius = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, 0.37 * box["width"]
    page.mouse.move(x, y - radius)
    page.mouse.down()
    for step in range(1, 13):
        turn = math.radians(degrees * step / 12)
        page.mouse.move(x - radius * math.sin(turn), y - radius * math.cos(turn))
    page.mouse.up()


def drop(page: Page, path: Path, kind: str = "image/png") -> None:
    """Drop a file on the page."""
    page.evaluate(
        """([content, name, kind]) => {
            const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File([bytes], name, { type: kind }));
            const event = new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true });
            document.getElementById("dial").dispatchEvent(event);
        }""",
        [base64.b64encode(path.read_bytes()).decode(), path.name, kind],
    )


def held(page: Page, url: str, act: Callable[[], None]) -> Route:
    """The first request to this address that an act makes, held up until it is let go on."""
    late: list[Route] = []
    page.route(url, lambda route: late.append(route), times=1)
    act()
    while not late:
        page.wait_for_timeout(20)
    return late[0]


def draw_seven(page: Page) -> None:
    """Draw a 7 on the pad."""
    box = page.locator("#pad").bounding_box()
    assert box

    def go(x: float, y: float) -> None:
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=8)

    go(0.25, 0.2)
    page.mouse.down()
    go(0.75, 0.2)
    go(0.45, 0.85)
    page.mouse.up()


def answers(page: Page) -> list[str]:
    """What each model says."""
    return page.locator(".card .says b").all_inner_texts()
