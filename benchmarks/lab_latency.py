"""From a move of the dial to new bars: in a real browser, and over HTTP for many people at once.

    OMP_NUM_THREADS=2 python -m benchmarks.lab_latency

Starts `gevit app` on a free port. The browser (Chromium, see e2e/setup.sh) turns the dial degree by degree and waits
for the bars of each angle. Then several clients at once ask for answers as the page does, each for the next angle when
it has the last one; every answer is compared with that of a quiet server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import threading
import time
import urllib.request
from collections.abc import Sequence

from e2e.conftest import lab, launched, opened

from gevit.environment import cpu_model

IMAGE = "api/scenes/digits/images/sample7"
SAME = 1e-5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=150, help="of the dial, in the browser and of each client")
    parser.add_argument("--clients", type=int, default=10, help="people at once")
    args = parser.parse_args()
    print(cpu_model())
    with lab() as (address, _):
        _describe("dial to bars, Chromium", _in_browser(address, args.moves))
        answers = {angle: _ask(address, angle) for angle in range(0, 360, 5)}
        _describe("answer over HTTP, one client", _over_http(address, args.moves, 1, answers))
        _describe(f"answer over HTTP, {args.clients} clients", _over_http(address, args.moves, args.clients, answers))


def _in_browser(address: str, moves: int) -> list[float]:
    """Milliseconds from each key press to the bars of its angle being in the page."""
    with launched() as browser, opened(browser, address) as page:
        page.wait_for_selector("#polars[data-whole]")
        found: list[float] = page.evaluate(
            """async (moves) => {
                const dial = document.querySelector("#dial svg"), panel = document.getElementById("turn");
                const times = [];
                for (let move = 0; move < moves; move++) {
                    const shown = new Promise((done) => {
                        const observer = new MutationObserver(() => (observer.disconnect(), done()));
                        observer.observe(panel, { attributeFilter: ["data-shown"] });
                    });
                    const start = performance.now();
                    dial.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
                    await shown;
                    times.push(performance.now() - start);
                }
                return times;
            }""",
            moves,
        )
    return found


def _over_http(address: str, moves: int, clients: int, expected: dict[int, list[list[float]]]) -> list[float]:
    """Milliseconds of every answer; a wrong one, or an error, ends the measurement."""
    times: list[float] = []
    problems: list[BaseException] = []

    def turn(first: int) -> None:
        try:
            for move in range(moves):
                angle = 5 * (first + move) % 360
                start = time.perf_counter()
                answer = _ask(address, angle)
                times.append(1000 * (time.perf_counter() - start))
                for found, wanted in zip(answer, expected[angle], strict=True):
                    assert max(abs(x - y) for x, y in zip(found, wanted, strict=True)) < SAME
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=turn, args=(7 * number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return times


def _ask(address: str, angle: int) -> list[list[float]]:
    with contextlib.closing(urllib.request.urlopen(f"{address}{IMAGE}/turn?angle={angle}", timeout=60)) as response:
        return [answer["probabilities"] for answer in json.load(response)["answers"]]


def _describe(what: str, times: Sequence[float]) -> None:
    late = statistics.quantiles(times, n=20)[-1]
    print(f"{what}: median {statistics.median(times):.0f} ms, 95th percentile {late:.0f} ms, {len(times)} answers")


if __name__ == "__main__":
    main()
