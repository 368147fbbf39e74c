"""Archives in place of folders: the same set as the folder, and what is broken, hostile or unusual."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from PIL import Image

from gevit.cli import main
from gevit.data import archive, file_split, open_dataset
from gevit.data.decode import decode
from gevit.evaluation.predict import find_images

TARS = {"tar": "w", "tar.gz": "w:gz", "TGZ": "w:gz", "tar.bz2": "w:bz2", "tar.xz": "w:xz"}


def png(shade: int, size: int = 8) -> bytes:
    content = io.BytesIO()
    Image.new("L", (size, size), shade).save(content, "PNG")
    return content.getvalue()


def classes(prefix: str = "", count: int = 10) -> dict[str, bytes]:
    """Members of two classes, by name; all images differ."""
    return {
        f"{prefix}{name}/{number}.png": png(100 * label + number)
        for label, name in enumerate(("cells", "empty"))
        for number in range(count)
    }


def write_zip(path: Path, members: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def write_tar(path: Path, members: Mapping[str, bytes], mode: str = "w:gz", *more: tarfile.TarInfo) -> Path:
    with tarfile.open(path, mode) as file:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
        for info in more:
            file.addfile(info)
    return path


def unpack(path: Path, members: Mapping[str, bytes]) -> Path:
    for name, content in members.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def refused(path: Path, match: str) -> None:
    """It is refused in one line that names the archive."""
    with pytest.raises(ValueError, match=match) as raised:
        open_dataset(str(path))
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    yield
    assert not os.listdir(scratch), "no file is unpacked under a name"


# The same set


@pytest.mark.parametrize(
    ("kind", "prefix"), [*(("zip", prefix) for prefix in ("", "./", "outer/inner/")), *((kind, "a/") for kind in TARS)]
)
def test_an_archive_is_the_folder_that_it_unpacks_to(kind: str, prefix: str, tmp_path: Path) -> None:
    members = {**classes(prefix), f"{prefix}readme.txt": b"no image", "__MACOSX/cells/._0.png": b"junk"}
    path = tmp_path / f"photos.{kind}"
    packed = write_zip(path, members) if kind == "zip" else write_tar(path, members, TARS[kind])
    ours, folder = open_dataset(str(packed)), open_dataset(str(unpack(tmp_path / "photos", members)))
    assert ours.name == folder.name == "photos"
    assert ours.digest == folder.digest
    for split in ("train", "valid", "test"):
        everything = torch.arange(len(folder.split(split)))
        assert torch.equal(ours.split(split).images(everything), folder.split(split).images(everything))
        assert torch.equal(ours.split(split).labels, folder.split(split).labels)


def test_splits_in_an_archive(tmp_path: Path) -> None:
    members = {k: v for split in ("train", "val", "test") for k, v in classes(f"set/{split}/", 2).items()}
    dataset = open_dataset(str(write_zip(tmp_path / "set.zip", members)))
    assert [len(dataset.split(split)) for split in ("train", "valid", "test")] == [4, 4, 4]
    assert dataset.drawn == ()


def test_what_is_not_kept_is_read_again_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_zip(tmp_path / "photos.zip", classes())
    everything = torch.arange(16)
    kept = open_dataset(str(path)).train.images(everything)
    monkeypatch.setattr(file_split, "MEMORY_BUDGET", 0)
    train = open_dataset(str(path)).train
    sent = pickle.dumps(train)
    path.unlink()
    assert torch.equal(train.images(everything), kept), "the archive is read once"
    write_zip(path, classes())
    assert torch.equal(pickle.loads(sent).images(everything), kept)


def test_names_of_all_kinds(tmp_path: Path) -> None:
    names = ("Cells", "cells", "größe", "細胞", "a b")
    members = {f"{name}/{n}.{end}": png(n) for name in names for n, end in enumerate(("png", "PNG", "Png"))}
    members |= {"cells/0.PNG": png(7), "Cells\\9.png": png(9)}  # other files on Linux; packed on Windows
    dataset = open_dataset(str(write_zip(tmp_path / "names.zip", members)))
    assert dataset.classes == tuple(sorted(names))
    assert sum(len(dataset.split(split)) for split in ("train", "valid", "test")) == 17


def test_utf8_names_that_are_not_marked_as_such(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "old.zip", {f"{name}/{n}.png": png(n) for name in ("größe", "b") for n in range(3)})
    content = path.read_bytes()
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(signature)
        while at >= 0:
            content = content[: at + flags + 1] + bytes([content[at + flags + 1] & ~0x08]) + content[at + flags + 2 :]
            at = content.find(signature, at + 1)
    path.write_bytes(content)
    assert open_dataset(str(path)).classes == ("b", "größe")


def test_predict_takes_archives(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "new.tar.gz", {"b.png": png(1), "deep/a.png": png(2), "notes.txt": b""})
    files = find_images([str(path)])
    assert [str(file) for file in files] == [f"{path}/b.png", f"{path}/deep/a.png"]
    assert [int(decode(file, 8, 1)[0, 0, 0]) for file in files] == [1, 2]


# Hostile ones


@pytest.mark.parametrize("name", ["../cells/x.png", "/etc/x.png", "cells/../../x.png", "C:\\x.png", "..\\x.png"])
def test_names_that_lead_out(name: str, tmp_path: Path) -> None:
    refused(write_zip(tmp_path / "bad.zip", {**classes(), name: png(1)}), "leads out of the archive; pack it anew")
    if not name.startswith(".."):
        refused(write_tar(tmp_path / "bad.tgz", {**classes(), name: png(1)}), "leads out of the archive")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices(kind: bytes, tmp_path: Path) -> None:
    info = tarfile.TarInfo("cells/x.png")
    info.type, info.linkname = kind, "/etc/passwd"
    refused(write_tar(tmp_path / "bad.tar", classes(), "w", info), "'cells/x.png' in it is a .*unpack it")


def test_links_in_a_zip(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "bad.zip", classes())
    info = zipfile.ZipInfo("cells/x.png")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(info, "/etc/passwd")
    refused(path, "'cells/x.png' in it is a link")


def test_a_name_twice(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "twice.zip", classes())
    with zipfile.ZipFile(path, "a") as file, pytest.warns(UserWarning, match="Duplicate name"):
        file.writestr("cells/3.png", png(99))
    refused(path, "it has 'cells/3.png' twice")
    with tarfile.open(write_tar(tmp_path / "twice.tar", classes(), "w"), "a") as tar:
        tar.addfile(tarfile.TarInfo("cells/3.png"))
    refused(tmp_path / "twice.tar", "it has 'cells/3.png' twice")
    refused(write_zip(tmp_path / "both.zip", {**classes(), "cells/3.png/x.png": png(1)}), "'cells/3.png' twice")


@pytest.mark.parametrize("end", ["zip", "tar.gz"])
@pytest.mark.parametrize("name", ["cells/x.png", "notes.txt"])
def test_bombs(end: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "HARMLESS_BYTES", 100_000)
    members = {**classes(), name: bytes(2_000_000)}
    path = tmp_path / f"bomb.{end}"
    refused(write_zip(path, members) if end == "zip" else write_tar(path, members), "unpacks to more than .* unpack it")


@pytest.mark.parametrize(("limit", "match"), [("LARGEST_MEMBER", "has .* bytes, more"), ("MOST_MEMBERS", "members")])
def test_too_much_of_anything(limit: str, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, limit, 10)
    refused(write_zip(tmp_path / "much.zip", classes()), match)
    refused(write_tar(tmp_path / "much.tar", classes(), "w"), match)


def test_headers_are_not_read_whatever_their_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LARGEST_READ", 10_000)
    refused(write_tar(tmp_path / "long.tgz", {**classes(), f"cells/{'x' * 20_000}.png": png(1)}), "a header in it has")


# Broken ones


def test_encrypted(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "secret.zip", classes())
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    refused(path, "is encrypted; unpack it")


@pytest.mark.parametrize("kind", ["zip", *TARS])
def test_truncated(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"cut.{kind}"
    content = (write_zip(path, classes()) if kind == "zip" else write_tar(path, classes(), TARS[kind])).read_bytes()
    end = len(content.rstrip(b"\0"))
    for length in (end // 3, end // 2, end - end % 512 - 512, end - 20):
        path.write_bytes(content[:length])
        refused(path, "damaged|truncated")


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "tar.bz2", "tar.xz"])
def test_changed_bytes_are_noticed(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"changed.{kind}"
    content = (write_zip(path, classes()) if kind == "zip" else write_tar(path, classes(), TARS[kind])).read_bytes()
    sound = open_dataset(str(path)).digest
    end = content.index(b"PK\x01\x02") if kind == "zip" else len(content)  # names have no checksum in there
    for at in range(7, end, end // 12):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x5A]) + content[at + 1 :])
        with contextlib.suppress(ValueError):
            assert open_dataset(str(path)).digest == sound, f"byte {at}"  # it was a date, or a comment


def test_a_damaged_header_is_not_the_end(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "set.tar", classes(), "w")
    content = bytearray(path.read_bytes())
    content[content.index(b"empty/5.png")] ^= 1
    path.write_bytes(content)
    refused(path, "damaged or truncated")


@pytest.mark.parametrize("content", [b"", b"Rar!\x1a\x07", b"<html>not found</html>", png(3)])
def test_what_is_no_archive(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "photos.zip"
    path.write_bytes(content)
    refused(path, "it is empty|no archive of a known kind .zip, tar")


def test_a_link_that_leads_to_itself_is_nothing(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert archive.name_of(loop) == "loop"
    with pytest.raises(FileNotFoundError, match="no folder or archive"):
        open_dataset(str(loop))


def test_archives_without_images(tmp_path: Path) -> None:
    refused(write_zip(tmp_path / "text.zip", {"a/notes.txt": b"x"}), "no images in .*expected files ending in")
    refused(write_zip(tmp_path / "nothing.zip", {}), "no images")
    inner = {f"{name}.zip": b"PK" for name in ("train", "test")}
    refused(write_zip(tmp_path / "nested.zip", inner), r"archives in it \(train.zip, test.zip\): unpack it")
    refused(write_zip(tmp_path / "flat.zip", {f"{n}.png": png(n) for n in range(3)}), "0 class folders and 3 images")
    refused(write_zip(tmp_path / "one.zip", {f"cells/{n}.png": png(n) for n in range(3)}), "1 class folders")


def test_broken_images_in_an_archive_are_named(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "set.zip", {**classes("set/"), "set/cells/bad.png": b"no image"})
    refused(path, r"1 of 21 images in .*set/cells/bad.png \(it is no image")
    with pytest.warns(UserWarning, match="left out"):
        assert len(open_dataset(str(path), skip_corrupt=True).train) == 16


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(OSError, match="no room in .*; set TMPDIR"):
        open_dataset(str(write_zip(tmp_path / "set.zip", classes())))


def test_the_command_line_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_zip(tmp_path / "bad.zip", {**classes(), "../\x1b[2J.png": png(1)})
    assert main(["data", "preview", str(path), "--out", str(tmp_path / "sheet.png")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "\x1b" not in said
    assert not (tmp_path / "sheet.png").exists()
