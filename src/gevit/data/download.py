"""Getting official files: from their mirrors in turn, or from a file at hand; their checksum must be right."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gevit.data.storage import checksum
from gevit.environment import needs


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


def _check_official(source: Source, file: Path) -> None:
    if not file.is_file():
        raise FileNotFoundError(f"no file {file}; expected {source.file}")
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
