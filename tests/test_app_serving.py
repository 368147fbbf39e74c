"""The lab on a port: bad clients do no harm, and what goes wrong at the start is said in a line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the lab needs: pip install 'gevit[app]'")
pytest.importorskip("uvicorn", reason="the lab needs: pip install 'gevit[app]'")

import uvicorn
from starlette.requests import Request
from starlette.types import Message

from gevit.app import serving
from gevit.app.lab import Lab
from gevit.app.server import make_app
from gevit.app.uploads import Refused, read_body
from gevit.app.work import Busy, Gate, Gone, Work
from gevit.cli import main


@contextlib.contextmanager
def served(open_browser: bool = False) -> Iterator[int]:
    """The port of a lab."""
    with serving.bind("127.0.0.1", 0) as listening:
        config = uvicorn.Config(make_app(Lab()), http=serving.Impatient, log_level="error", timeout_graceful_shutdown=1)
        server = serving._Announced(config, "http://127.0.0.1/", is_open=False, open_browser=open_browser)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(timeout=10)
            assert not thread.is_alive()


def status(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"GET /api/lab HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return connection.makefile("rb").readline().decode().strip()


def test_clients_that_hang_talk_garbage_or_leave_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SECONDS_FOR_REQUEST", 0.3)
    with served() as port:
        hanging = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(20)]
        for number, connection in enumerate(hanging):
            if number % 2:
                connection.sendall(b"GET /api/lab HT")
        garbage = socket.create_connection(("127.0.0.1", port), timeout=20)
        garbage.sendall(os.urandom(1000) + b"\r\n\r\n")
        for _ in range(10):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as leaving:
                leaving.sendall(b"POST /api/data HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nabc")
        assert status(port) == "HTTP/1.1 200 OK"
        assert all(connection.recv(1) == b"" for connection in hanging)  # closed: it does not wait for ever
        assert status(port) == "HTTP/1.1 200 OK"
        for connection in (*hanging, garbage):
            connection.close()


def test_it_answers_while_the_browser_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, closed = threading.Event(), threading.Event()

    def open_browser(address: str) -> bool:
        opened.set()
        return closed.wait(60)

    monkeypatch.setattr("webbrowser.open", open_browser)
    monkeypatch.setattr(serving, "_has_screen", lambda: True)
    with served(open_browser=True) as port:
        try:
            assert opened.wait(20)
            assert status(port) == "HTTP/1.1 200 OK"
        finally:
            closed.set()


def test_ten_people_at_once_get_their_own_answers() -> None:
    def answer(port: int, angle: int) -> list[list[float]]:
        address = f"http://127.0.0.1:{port}/api/scenes/digits/images/sample{angle % 7}/turn?angle={angle}"
        with urllib.request.urlopen(address, timeout=60) as response:
            return [one["probabilities"] for one in json.load(response)["answers"]]

    angles = range(0, 300, 10)
    with served() as port:
        alone = [answer(port, angle) for angle in angles]
        with ThreadPoolExecutor(10) as people:
            together = list(people.map(lambda angle: answer(port, angle), angles))
    for one, other in zip(alone, together, strict=True):
        assert other == [pytest.approx(bars, abs=1e-6) for bars in one]


def test_a_body_that_does_not_arrive_is_not_waited_for() -> None:
    async def receive() -> Message:
        await asyncio.sleep(60)
        raise AssertionError

    request = Request({"type": "http", "headers": []}, receive)
    with pytest.raises(Refused, match="did not arrive within 0.05 seconds") as refused:
        asyncio.run(read_body(request, seconds=0.05))
    assert refused.value.status == 408


def test_what_a_client_that_left_wanted_is_not_computed() -> None:
    work = Work()
    computed: list[str] = []
    first_may_end = threading.Event()

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def here() -> Message:
        await asyncio.sleep(60)
        raise AssertionError

    async def scenario() -> None:
        scope = {"type": "http", "headers": []}
        first = asyncio.ensure_future(work.run(Request(scope, here), first_may_end.wait))
        await asyncio.sleep(0)  # it is first in the queue
        with pytest.raises(Gone):
            await work.run(Request(scope, gone), computed.append, "left")
        last = asyncio.ensure_future(work.run(Request(scope, here), computed.append, "stayed"))
        await asyncio.sleep(0)
        first_may_end.set()
        await asyncio.gather(first, last)

    asyncio.run(scenario())
    assert computed == ["stayed"]


def test_a_gate_lets_only_a_few_in() -> None:
    gate = Gate(1)
    with gate.passed(), pytest.raises(Busy, match="too many files"), gate.passed():
        raise AssertionError
    with gate.passed():
        pass


class TestCommand:
    def test_a_taken_port(self, capsys: pytest.CaptureFixture[str]) -> None:
        with serving.bind("127.0.0.1", 0) as taken:
            port = taken.getsockname()[1]
            assert main(["app", "--port", str(port), "--no-browser"]) == 2
        assert capsys.readouterr().err.splitlines() == [
            f"gevit app: error: port {port} is taken; give another one, --port {port + 1}, "
            "or --port 0 for any that is free"
        ]

    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            (["--checkpoint", "nowhere"], "there is no nowhere; expected the folder of a run, or a .safetensors file"),
            (["--data", "nowhere"], "no folder or archive nowhere"),
            (["--port", "70000"], "--port must be from 0 to 65535"),
            (["--host", "no.such.host.invalid"], "there is no host 'no.such.host.invalid'"),
        ],
    )
    def test_mistakes_are_one_line(self, flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["app", "--port", "0", "--no-browser", *flags]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert words in line

    def test_without_the_extra(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setitem(sys.modules, "uvicorn", None)
        for name in ("gevit.app.serving", "gevit.app.server"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        assert main(["app", "--no-browser"]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert "pip install 'gevit[app]'" in line

    @pytest.mark.parametrize("at_work", ["idle", "examining", "uploading"])
    def test_ctrl_c_is_clean_and_quick(self, at_work: str, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "gevit", "app", "--port", "0", "--no-browser"]
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
            assert process.stdout is not None
            address = process.stdout.readline().split()[4]
            assert address.startswith("http://127.0.0.1:")
            assert list(tmp_path.iterdir())
            upload = socket.create_connection(("127.0.0.1", int(address.rstrip("/").rpartition(":")[2])))
            if at_work == "uploading":
                upload.sendall(b"POST /api/data HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nabc")
                time.sleep(0.5)
            if at_work == "examining":
                wanted = json.dumps({"scene": "digits", "model": 0, "data": "scene", "images": 500})
                urllib.request.urlopen(f"{address}api/examinations", wanted.encode(), timeout=60).close()
                time.sleep(1)
            start = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
            assert time.monotonic() - start < 10  # it takes a fraction of a second
            upload.close()
        assert (process.returncode, out, err) == (0, "stopped\n", "")
        assert not list(tmp_path.iterdir())
