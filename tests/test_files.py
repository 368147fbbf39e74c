"""Files that are written aside, the lock of a folder, and what is not opened."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gevit.cli.arguments import check_file
from gevit.files import is_left_over, locked, open_regular, write_aside


def test_a_file_aside_is_new_and_cannot_be_guessed(tmp_path: Path) -> None:
    names = set()
    for _ in range(5):
        with write_aside(tmp_path / "report.html") as aside:
            assert aside.exists(), "made before anybody else can lay a link there"
            assert aside.suffix == ".html", "writers choose the format by it"
            assert is_left_over(aside)
            names.add(aside.name)
    assert len(names) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_no_link_is_followed_when_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("keep me")
    monkeypatch.setattr("secrets.token_hex", lambda count: "0" * 2 * count)  # as if the name had been guessed
    folder = tmp_path / "run"
    folder.mkdir()
    with write_aside(folder / "probe.txt") as aside:
        name = aside.name
    (folder / name).symlink_to(precious)
    with pytest.raises(OSError, match="cannot write"), write_aside(folder / "a.txt") as aside:
        aside.write_text("gone")
    assert precious.read_text() == "keep me"


def test_what_a_link_leads_to_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    for name in ("there", "missing"):
        (tmp_path / f"link-{name}").symlink_to(Path("elsewhere", name))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "there").write_text("old")
    for name in ("there", "missing"):
        with write_aside(tmp_path / f"link-{name}") as aside:
            aside.write_text("new")
        assert (tmp_path / f"link-{name}").is_symlink()
        assert (tmp_path / "elsewhere" / name).read_text() == "new"


def test_only_files_are_replaced(tmp_path: Path) -> None:
    pipe, link, loop = tmp_path / "pipe", tmp_path / "link", tmp_path / "loop"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    loop.symlink_to(loop)
    kinds = {pipe: "a pipe", link: "a pipe", loop: "a symbolic link that leads to itself", tmp_path: "a folder"}
    # Not the real one: who writes as root would replace it.
    device = tmp_path / "null"
    if os.geteuid() == 0:
        with contextlib.suppress(PermissionError):  # in a container
            os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            kinds[device] = "a device"
    modes = {path: path.lstat().st_mode for path in kinds}
    for path, kind in kinds.items():
        with pytest.raises(OSError, match=f"cannot write {path}: it is {kind}; name a file"), write_aside(path):
            pass
        with pytest.raises(ValueError, match=f"--out {path} cannot be written: it is {kind}"):
            check_file("--out", path)
    assert {path: path.lstat().st_mode for path in kinds} == modes


def test_what_is_written_has_the_mode_of_any_file(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    with write_aside(tmp_path / "aside") as aside:
        aside.write_text("x")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("usual", "aside")}
    assert len(modes) == 1


def test_a_long_name_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / f"{'n' * 251}.txt"
    with write_aside(path) as aside:
        aside.write_text("x")
    assert path.read_text() == "x"


@pytest.mark.parametrize(
    "name", [".notes.2024.txt", ".model.123.safetensors", ".hidden", "report.json", ".gevit-notes"]
)
def test_files_of_others_are_not_left_overs(name: str) -> None:
    assert not is_left_over(Path(name))


LOCKING = "import sys; from pathlib import Path; from gevit.files import locked\nwith locked(Path(sys.argv[1])): pass"


def locked_elsewhere(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", LOCKING, str(path)], capture_output=True, text=True)


def test_a_lock_keeps_other_processes_out(tmp_path: Path) -> None:
    path = tmp_path / "run" / "lock"
    with locked(path):
        assert "BlockingIOError: another process is at work in" in locked_elsewhere(path).stderr
    assert locked_elsewhere(path).returncode == 0, "and lets them in again"


def test_a_disk_without_locks_is_not_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.lockf", no_locks)
    with pytest.raises(OSError, match="cannot lock .*disk that has locks") as raised, locked(tmp_path / "lock"):
        pass
    assert not isinstance(raised.value, BlockingIOError)


def test_a_lock_leaves_alone_what_a_link_points_to(tmp_path: Path) -> None:
    precious, lock = tmp_path / "precious.txt", tmp_path / "lock"
    precious.write_text("keep me")
    lock.symlink_to(precious)
    with pytest.raises(OSError, match="cannot lock .*symbolic link"), locked(lock):
        pass
    lock.unlink()
    os.link(precious, lock)
    with locked(lock):
        pass
    assert precious.read_text() == "keep me"


def test_only_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), (tmp_path, "a folder"), (Path("/dev/zero"), "a device")):
        with pytest.raises(ValueError, match=kind):
            open_regular(path)
        with pytest.raises(OSError, match="cannot lock"), locked(path):
            pass
    (tmp_path / "file").write_bytes(b"x")
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"x"
