"""Where data is stored, and how we know that it is what was stored: recorded checksums."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from gevit.files import write_aside


def data_root(root: str | Path | None = None) -> Path:
    """The folder of the data: this one, else that of the environment variable GEVIT_DATA, else ~/.cache/gevit."""
    return Path(root or os.environ.get("GEVIT_DATA") or Path.home() / ".cache" / "gevit").expanduser()


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """The checksum of a file, in hexadecimal."""
    digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


@dataclass(frozen=True)
class Record:
    """What a file was when it was stored."""

    bytes: int
    sha256: str

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


def _manifest(root: Path, name: str) -> Path:
    return root / f"{name}.sha256.json"
