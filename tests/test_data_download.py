from __future__ import annotations

import gzip
import hashlib
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gevit.data import load_digits, open_dataset, rotmnist
from gevit.data.catalog import prepare
from gevit.data.storage import Source, obtained

CONTENT = os.urandom(200_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and hangs up in the middle of files under /cut."""

    def do_GET(self) -> None:
        if not self.path.startswith("/cut"):
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:1000])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """A local web site with `right/file.bin` and `wrong/file.bin`."""
    folder = tmp_path / "site"
    for name, content in (("right", CONTENT), ("wrong", b"something else")):
        (folder / name).mkdir(parents=True)
        (folder / name / "file.bin").write_bytes(content)
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *args: Handler(*args, directory=str(folder))
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def source(site: str, *places: str) -> Source:
    return Source("file.bin", MD5, tuple(f"{site}/{place}/file.bin" for place in places), "gevit data prepare it")


def test_the_first_mirror_that_is_right_counts(site: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    with obtained(source(site, "missing", "wrong", "cut", "right", "never"), root) as path:
        assert path.name == "file.bin"
        assert path.read_bytes() == CONTENT
    assert not os.listdir(root), "a download is gone after use"
    assert capfd.readouterr().err.count("downloading") == 4


def test_if_no_mirror_works_all_are_named(site: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    with (
        pytest.raises(
            OSError,
            match=rf"cannot download file.bin; tried {site}/missing/file.bin \(404.*{site}/wrong/file.bin .*hash.*"
            rf"Get it in another way \(md5 {MD5}\), then: gevit data prepare it",
        ) as caught,
        obtained(source(site, "missing", "wrong", "cut"), root),
    ):
        pass
    assert "\n" not in str(caught.value)
    assert not os.listdir(root)


def test_a_file_at_hand_needs_no_download(tmp_path: Path) -> None:
    path = tmp_path / "got.bin"
    path.write_bytes(CONTENT)
    with obtained(source("http://nowhere.invalid", "x"), tmp_path / "root", path) as found:
        assert found == path
    assert path.exists()


def test_prepare_downloads_checks_builds_and_records(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = load_digits()
    sums = {}
    for part, members in (("train", np.arange(0, 5000, 100)), ("t10k", np.arange(50, 5000, 250))):
        for name, header, content in (
            (f"{part}-images-idx3-ubyte", 16, images[members].numpy()),
            (f"{part}-labels-idx1-ubyte", 8, labels[members].numpy().astype(np.uint8)),
        ):
            data = bytes(header) + content.tobytes()
            packed = gzip.compress(data)
            (tmp_path / "site" / "right" / f"{name}.gz").write_bytes(packed)
            sums[name] = (hashlib.md5(packed).hexdigest(), hashlib.md5(data).hexdigest())
    monkeypatch.setattr(rotmnist, "MNIST", sums)
    monkeypatch.setattr(rotmnist, "MIRRORS", (f"{site}/missing/", f"{site}/right/"))
    for name, size in (("TRAIN", 40), ("VALID", 10), ("TEST", 20)):
        monkeypatch.setattr(rotmnist, name, size)
    root = tmp_path / "root"
    prepare("rotmnist-rebuilt", root)
    assert sorted(os.listdir(root)) == ["rotmnist-rebuilt.sha256.json", "rotmnist_rebuilt.npz"]
    assert len(open_dataset("rotmnist-rebuilt", root).train) == 40

    monkeypatch.setattr(rotmnist, "MIRRORS", ())
    prepare("rotmnist-rebuilt", root)  # there and right: nothing is downloaded
    stored = root / "rotmnist_rebuilt.npz"
    stored.write_bytes(stored.read_bytes()[:-1])
    with pytest.raises(OSError, match="cannot download"):
        prepare("rotmnist-rebuilt", root)
    monkeypatch.setattr(rotmnist, "MIRRORS", (f"{site}/right/",))
    prepare("rotmnist-rebuilt", root)
    assert len(open_dataset("rotmnist-rebuilt", root).train) == 40
