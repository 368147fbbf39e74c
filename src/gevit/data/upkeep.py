"""Getting named data sets, and checking that their files are still what they were."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gevit.data.catalog import CATALOG, Entry, open_dataset
from gevit.data.storage import checksum, data_root, record_files, recorded_files

BAD = ("changed", "missing", "unreadable")


@dataclass(frozen=True)
class Finding:
    """What was found of one file.

    Attributes:
        dataset: name of the set.
        file: the file.
        status: `ok`, `changed`, `missing`, `unreadable`, or `unrecorded`: readable, with nothing to compare it to.
        detail: what was expected and found.
    """

    dataset: str
    file: str
    status: str
    detail: str = ""


def prepare(name: str, root: str | Path | None = None, file: Path | None = None) -> str:
    """Get a data set (download it, or take it from `file`), record its checksums, and say what is there.

    What is already there and right is left as it is, unless there is a `file`.
    """
    entry, place = CATALOG[name], data_root(root)
    if entry.embedded:
        return f"{name} comes with gevit: nothing to prepare"
    recorded = recorded_files(place, name)
    damaged = any(record.difference(path) for path, record in recorded.items())
    if file is not None or damaged or not entry.is_present(place):
        entry.reader().prepare(place, file)
        recorded = {}
    if not recorded:
        entry.reader().read(entry.folder(place))  # what cannot be read is not recorded as right
        record_files(place, name, entry.found(place))
    return f"{name} is in {place}: {open_dataset(name, place).note}"


def verify(name: str, root: str | Path | None = None) -> list[Finding]:
    """Compare every file of a data set with its recorded checksum, or with its published one."""
    entry, place = CATALOG[name], data_root(root)
    findings = [
        Finding(name, str(path), *_compared(record.difference(path)))
        for path, record in recorded_files(place, name).items()
    ]
    if findings:
        return findings
    if not entry.is_present(place):
        return [Finding(name, str(place), "missing", f"get it with: {entry.command(place)}")]
    return _unrecorded(entry, place)


def kept_datasets(root: str | Path | None = None) -> list[str]:
    """Names of the sets that have a file or a record of one."""
    place = data_root(root)
    return [name for name, entry in CATALOG.items() if entry.found(place) or recorded_files(place, name)]


def _compared(difference: str | None) -> tuple[str, str]:
    if difference is None:
        return "ok", "as recorded"
    return ("missing", "") if difference == "missing" else ("changed", difference)


def _unrecorded(entry: Entry, root: Path) -> list[Finding]:
    findings = []
    for path in entry.found(root):
        official = entry.official.get(path.name)
        if official is None:
            findings.append(Finding(entry.name, str(path), "unrecorded", "no checksum was recorded"))
        elif checksum(path, "md5") == official:
            findings.append(Finding(entry.name, str(path), "ok", "as published"))
        else:
            findings.append(Finding(entry.name, str(path), "unrecorded", "not the published file"))
    try:
        entry.reader().read(entry.folder(root))
    except (ValueError, OSError) as error:
        findings.append(Finding(entry.name, str(root), "unreadable", str(error)))
    return findings
