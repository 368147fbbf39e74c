"""The files of named sets: where they are stored, how official ones are obtained, and the checksums that prove them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from gevit.environment import needs
from gevit.files import open_regular, write_aside


def data_root(root: str | Path | None = None) -> Path:
    """The folder of the data: this one, else that of the environment variable GEVIT_DATA, else ~/.cache/gevit."""
    return expanded(root or os.environ.get("GEVIT_DATA") or "~/.cache/gevit")


def expanded(path: str | Path) -> Path:
    """The path, with a leading `~` or `~user` as the home folder that it stands for."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(
            f"nobody knows the home folder in {path}; write the path out (that of the data: --data-root or GEVIT_DATA)"
        ) from error


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """The checksum of a file, in hexadecimal."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


@dataclass(frozen=True)
class Record:
    """What a file was when it was stored."""

    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if type(self.bytes) is not int or not isinstance(self.sha256, str):
            raise TypeError(f"expected a number of bytes and a sha256, got {self.bytes!r:.80} and {self.sha256!r:.80}")

    @staticmethod
    def of(path: Path) -> Record:
        """Measure a file."""
        return Record(path.stat().st_size, checksum(path))

    def difference(self, path: Path, sizes_only: bool = False) -> str | None:
        """How the file now differs from the record, or None if it does not."""
        if not path.is_file():
            return "missing"
        size = path.stat().st_size
        if size != self.bytes:
            return f"expected {self.bytes:,} bytes, found {size:,}"
        found = self.sha256 if sizes_only else checksum(path)
        return None if found == self.sha256 else f"expected sha256 {self.sha256}, found {found}"


def record_files(root: Path, name: str, files: Iterable[Path]) -> None:
    """Write the checksums of these files under `root` aside, for `recorded_files` and `gevit data verify`."""
    records = {file.relative_to(root).as_posix(): asdict(Record.of(file)) for file in sorted(files)}
    with write_aside(_manifest(root, name)) as aside:
        aside.write_text(json.dumps({"name": name, "files": records}, indent=2) + "\n")


def recorded_files(root: Path, name: str) -> dict[Path, Record]:
    """What was recorded of the set when it was prepared; empty if nothing was."""
    path = _manifest(root, name)
    if not path.exists():
        return {}
    try:
        files = json.loads(path.read_text())["files"]
        return {root / file: Record(**record) for file, record in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it and prepare the data again") from error


@dataclass(frozen=True)
class Source:
    """An official file.

    Attributes:
        file: its name.
        md5: its checksum, as published.
        urls: where it can be had, best first.
        by_hand: the command that imports a file got in another way.
    """

    file: str
    md5: str
    urls: tuple[str, ...]
    by_hand: str


@contextmanager
def obtained(source: Source, root: Path, file: Path | None = None) -> Iterator[Path]:
    """The path of the official file: `file` itself, or a download that is gone after the block."""
    if file is not None:
        _check_official(source, file)
        yield file
        return
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as folder:
        yield _download(source, Path(folder))


def _manifest(root: Path, name: str) -> Path:
    return root / f"{name}.sha256.json"


def check_there(file: Path, expected: str) -> Path:
    """Return `file` if it is one."""
    if not file.is_file():
        raise FileNotFoundError(f"no file {file}; expected {expected}")
    return file


def _check_official(source: Source, file: Path) -> None:
    check_there(file, source.file)
    found = checksum(file, "md5")
    if found != source.md5:
        raise ValueError(
            f"{file} is not the official {source.file}: expected md5 {source.md5}, found {found} "
            f"({file.stat().st_size:,} bytes); it may be truncated, get it again"
        )


def _download(source: Source, folder: Path) -> Path:
    with needs("pooch"):
        import pooch
    pooch.get_logger().setLevel(logging.WARNING)
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=60)
    tried = []
    for url in source.urls:
        print(f"downloading {url}", file=sys.stderr)
        try:
            # Writes to a temporary file, and renames it once its checksum is right.
            return Path(pooch.retrieve(url, f"md5:{source.md5}", fname=source.file, path=folder, downloader=downloader))
        except (OSError, ValueError) as error:  # what requests raises is an OSError, a wrong checksum a ValueError
            tried.append(f"{url} ({' '.join(str(error).split())})")
    raise OSError(
        f"cannot download {source.file}; tried {'; '.join(tried)}. "
        f"Get it in another way (md5 {source.md5}), then: {source.by_hand}"
    )
