"""An archive of images, zip or tar, in place of a folder.

No member is ever written under its name. The images are copied, one after the other, into one temporary file that has
no name itself: nothing can lead out of it, and the system takes it back however the process ends. What is there is
then found and opened by `Member`, which has as much of `pathlib.Path` as reading needs.

An archive is refused as a whole, with the reason, if a member has an unsafe name, is a link or a device, is encrypted,
occurs twice, or if there is too much of anything.
"""

from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import io
import lzma
import mmap
import os
import re
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BufferedIOBase, BufferedRandom, BufferedReader, BytesIO
from pathlib import Path
from typing import IO, TypeVar

from gevit.files import open_regular

NAMES = re.compile(r"\.(zip|tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz))$", re.IGNORECASE)
KNOWN = "zip, tar, tar.gz, tar.bz2, tar.xz"
# More than any set of images needs, and little enough to do no harm.
MOST_MEMBERS = 1_000_000
MOST_BYTES = 64 * 2**30
LARGEST_MEMBER = 2**30
# Images are compressed already: what unpacks to a hundred times its size, and to a lot, was made to fill a disk.
MOST_EXPANSION, HARMLESS_BYTES = 100, 2**28
LARGEST_READ = 2**24  # of headers in a tar: their lengths are whatever the archive says
DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error, EOFError, RuntimeError)
BY_HAND = "unpack it, and give the folder with the images"

Item = TypeVar("Item")
Stream = BufferedReader | BytesIO


@dataclass(frozen=True)
class Member:
    """A file or folder in an archive.

    Attributes:
        archive: the archive.
        inside: its path in there, with slashes; that of the outermost folder is empty.
    """

    archive: Archive
    inside: str

    def __str__(self) -> str:
        return f"{self.archive.path}/{self.inside}" if self.inside else str(self.archive.path)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.inside.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The end of its name, with the dot."""
        return Path(self.name).suffix

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self.inside in self.archive.folders

    def is_file(self) -> bool:
        """Whether it is an image file."""
        return self.inside in self.archive.places

    def is_symlink(self) -> bool:
        """Never: archives with links are refused."""
        return False

    def iterdir(self) -> Iterator[Member]:
        """What is in this folder."""
        for name in self.archive.folders[self.inside]:
            yield Member(self.archive, f"{self.inside}/{name}" if self.inside else name)

    def open(self) -> Stream:
        """Its content."""
        return BytesIO(self.archive.content[self.archive.places[self.inside]])


Location = Path | Member


def opened(file: Location | BytesIO) -> Stream:
    """Open a file for reading, wherever it is, in memory too; what is no file is refused."""
    if isinstance(file, BytesIO):
        return file
    return file.open() if isinstance(file, Member) else open_regular(file)


def name_of(path: Path) -> str:
    """The name of a folder, or of an archive without its ending: that of the set of images in it.

    >>> name_of(Path("data/photos.tar.gz"))
    'photos'
    """
    name = os.path.basename(os.path.realpath(path))  # a link that leads to itself has a name, too
    return name if path.is_dir() else NAMES.sub("", name)


def progress_of(items: Iterable[Item], what: str, total: int | None = None) -> Iterable[Item]:
    """The items, with a progress bar in a terminal unless they are few; `total` may be unknown."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    quiet = (total is not None and total <= 200) or not console.is_terminal
    return track(items, what, total, console=console, transient=True, disable=quiet)


class Archive:
    """The images of an archive.

    Attributes:
        path: the archive file.
        places: where the content of each image is, by its path in the archive.
        folders: the names of images and folders in each folder, by its path in the archive.
        content: of all images, one after the other.
        others: names of some files that are no images.
    """

    def __init__(self, path: Path, suffixes: frozenset[str]) -> None:
        """Read the members with these suffixes (in lower case, with the dot)."""
        self.path, self._suffixes = path, suffixes
        self.places: dict[str, slice] = {}
        self.folders: dict[str, dict[str, None]] = {"": {}}
        self.others: list[str] = []
        with _explained(path), open_regular(path) as packed, tempfile.TemporaryFile(prefix="gevit-") as unpacked:
            budget = _Budget(packed.seek(0, io.SEEK_END))
            entries, count = _entries(packed, budget)
            for entry in progress_of(entries, "unpacking", count):
                budget.take(entry.name, entry.size)
                self._add(entry, unpacked)
            unpacked.flush()
            self.content = mmap.mmap(unpacked.fileno(), 0, access=mmap.ACCESS_READ) if unpacked.tell() else b""
        if not self.places:
            raise ValueError(f"no images in {path}; {self._what_else()}")

    @property
    def root(self) -> Member:
        """Its outermost folder."""
        return Member(self, "")

    def __reduce__(self) -> tuple[type[Archive], tuple[Path, frozenset[str]]]:
        return Archive, (self.path, self._suffixes)  # processes that are not forked read it for themselves

    def _add(self, entry: _Entry, unpacked: BufferedRandom) -> None:
        parts = _safe_parts(entry.name)
        if entry.refused:
            raise ValueError(f"{entry.name!r} in it {entry.refused}")
        if not parts:
            return
        inside = "/".join(parts)
        if entry.open is None:
            self._add_folders(parts)
        elif Path(inside).suffix.lower() in self._suffixes:
            self._add_folders(parts[:-1])
            if inside in self.places or inside in self.folders:
                raise ValueError(f"it has {entry.name!r} twice; pack it anew, or {BY_HAND}")
            self.folders["/".join(parts[:-1])][parts[-1]] = None
            start = unpacked.tell()
            content = entry.open()
            assert content is not None  # tarfile has nothing for folders and links alone
            shutil.copyfileobj(content, unpacked, 2**20)
            self.places[inside] = slice(start, unpacked.tell())
        else:
            self.others.append(inside)

    def _add_folders(self, parts: list[str]) -> None:
        for depth in range(len(parts)):
            folder, name = "/".join(parts[:depth]), parts[depth]
            inside = f"{folder}/{name}" if folder else name
            if inside in self.places:
                raise ValueError(f"it has {inside!r} twice, as a file and as a folder; {BY_HAND}")
            self.folders[folder][name] = None
            self.folders.setdefault(inside, {})

    def _what_else(self) -> str:
        archives = [name for name in self.others if NAMES.search(name)]
        if archives:
            return f"it has archives in it ({', '.join(archives[:3])}): {BY_HAND}, or one of them"
        return f"expected files ending in {', '.join(sorted(self._suffixes))}"


@dataclass(frozen=True)
class _Entry:
    """A member as the archive lists it; `open` is None for a folder, `refused` says why it cannot be taken."""

    name: str
    size: int
    open: Callable[[], IO[bytes] | None] | None
    refused: str = ""


class _Budget:
    """How much an archive may hold."""

    def __init__(self, packed: int) -> None:
        self._members, self._bytes = 0, 0
        self.most_bytes = min(MOST_BYTES, max(HARMLESS_BYTES, MOST_EXPANSION * packed))

    def take(self, name: str, size: int) -> None:
        self._members += 1
        self._bytes += size
        if self._members > MOST_MEMBERS:
            raise ValueError(f"it has more than {MOST_MEMBERS:,} members; if that is right, {BY_HAND}")
        if size > LARGEST_MEMBER:
            raise ValueError(f"{name!r} in it has {size:,} bytes, more than {LARGEST_MEMBER:,}; leave it out")
        if self._bytes > self.most_bytes:
            raise ValueError(
                f"it unpacks to more than {self.most_bytes:,} bytes, far more than its size lets expect; if that is "
                f"right, {BY_HAND}"
            )


def _entries(packed: BufferedReader, budget: _Budget) -> tuple[Iterable[_Entry], int | None]:
    """The members in order, and how many there are if that is known. The kind is told by the content."""
    packed.seek(0)
    start = packed.read(512)
    packed.seek(0)
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        archive = zipfile.ZipFile(packed)
        return (_zip_entry(archive, info) for info in archive.infolist()), len(archive.infolist())
    if start.startswith(b"\x1f\x8b"):
        return _tar_entries(gzip.open(packed), budget), None
    if start.startswith(b"BZh"):
        return _tar_entries(bz2.open(packed), budget), None
    if start.startswith(b"\xfd7zXZ\0"):
        return _tar_entries(lzma.open(packed), budget), None
    if start[257:262] == b"ustar":
        return _tar_entries(packed, budget), None
    if not start:
        raise ValueError("it is empty; get it again")
    raise ValueError(f"it is no folder, and no archive of a known kind ({KNOWN}); if it is another one, {BY_HAND}")


def _zip_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Entry:
    name = info.filename
    if not info.flag_bits & 0x800:  # not marked as UTF-8, which it often is all the same
        with contextlib.suppress(UnicodeError):
            name = name.encode("cp437").decode("utf-8")
    name = name.replace("\\", "/")  # some programs pack the separators of Windows
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        refused = f"is a link or a device; pack the files themselves, or {BY_HAND}"
    elif info.flag_bits & 0x1:
        refused = f"is encrypted; {BY_HAND}"
    else:
        refused = ""
    return _Entry(name, info.file_size, None if name.endswith("/") else partial(archive.open, info), refused)


def _tar_entries(unpacked: BufferedIOBase, budget: _Budget) -> Iterator[_Entry]:
    reader = _TarReader(unpacked, budget)
    with tarfile.TarFile(fileobj=reader) as archive:  # type: ignore[arg-type]
        while (info := archive.next()) is not None:
            refused = "" if info.isfile() or info.isdir() else _refused_in_tar(info)
            yield _Entry(info.name, info.size, None if info.isdir() else partial(archive.extractfile, info), refused)
            archive.members = []  # type: ignore[attr-defined]  # they would be kept
    if reader.last_block.strip(b"\0") or len(reader.last_block) < tarfile.BLOCKSIZE:
        # Python takes a header that is cut off or damaged for the end.
        raise ValueError("it is damaged or truncated: it has no end; get it again")
    while reader.read(2**20):  # the checksum of what was unpacked comes last
        pass


def _refused_in_tar(info: tarfile.TarInfo) -> str:
    if info.issym() or info.islnk():
        kind, remedy = "a link", "pack the files themselves (tar --dereference --hard-dereference)"
    else:
        kind, remedy = "a device or pipe", "leave it out"
    return f"is {kind}; {remedy}, or {BY_HAND}"


class _TarReader:
    """The unpacked tar, read forwards, in small pieces, and only as much as the budget allows."""

    def __init__(self, unpacked: BufferedIOBase, budget: _Budget) -> None:
        self._unpacked, self._most = unpacked, budget.most_bytes + MOST_MEMBERS * tarfile.BLOCKSIZE
        self._position = 0
        self.last_block = b""

    def read(self, size: int) -> bytes:
        if size > LARGEST_READ:
            raise ValueError(f"it is damaged: a header in it has {size:,} bytes; get it again")
        if self._position + size > self._most:
            raise ValueError(f"it unpacks to more than {self._most:,} bytes; if that is right, {BY_HAND}")
        self.last_block = self._unpacked.read(size)
        self._position += len(self.last_block)
        return self.last_block

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        """Go on to this position; not further than the end."""
        while self._position < position and self.read(min(position - self._position, 2**20)):
            pass
        if position < self._position:
            raise ValueError("it is damaged: its parts are out of order; get it again")


def _safe_parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or re.match(r"[A-Za-z]:[/\\]", name):
        raise ValueError(f"{name!r} in it leads out of the archive; pack it anew, with paths inside its folder")
    return parts


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Say of which archive an error is, and what to do; the readers of archives raise all sorts for damaged ones."""
    try:
        yield
    except NotImplementedError as error:  # a compression of zip that Python does not know
        raise ValueError(f"cannot read {path}: {error}; {BY_HAND}") from error
    except DAMAGE as error:
        raise ValueError(f"cannot read {path}: it is damaged or truncated ({error}); get it again") from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise OSError(
                f"cannot unpack {path}: no room in {tempfile.gettempdir()}; set TMPDIR to another folder, or {BY_HAND}"
            ) from error
        if error.errno in (None, errno.EINVAL):  # of gzip and bz2; of zip, which seeks wherever it is told to
            raise ValueError(f"cannot read {path}: it is damaged ({error}); get it again") from error
        raise
    except ValueError as error:
        raise ValueError(f"cannot read {path}: {error}") from error
