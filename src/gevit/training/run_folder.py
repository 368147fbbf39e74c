"""The folder of a run: whose it is, and what it says of itself."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gevit.data.catalog import CATALOG
from gevit.files import is_left_over, locked, write_aside
from gevit.rendering.words import printable
from gevit.training.config import SETTINGS, TrainConfig, merged, read_yaml

CONFIG, CHECKPOINTS, LOCK = "config.yaml", "checkpoints", "lock"
REPORTS = ("report.json", "report.html", "report.md", "curves.png")  # of the weights of a run
# With another value of one of these it would be another run.
FIXED = {name for name, entry in SETTINGS.items() if not entry.metadata["may_change"]}


def resumed_config(folder: Path, given: Mapping[str, Any]) -> tuple[TrainConfig, str]:
    """The settings of the run in a folder, overridden by those that are given, and what was adapted, in words."""
    if not (folder / CONFIG).exists():
        raise ValueError(
            f"there is no run in {folder} to resume; name the folder of a run by --out, or leave out --resume to start "
            "a new one there"
        )
    settings, adapted = merged(read_yaml(folder / CONFIG), given)
    return TrainConfig(**{**settings, "out": str(folder)}), adapted


def check_folder(config: TrainConfig, resume: bool) -> None:
    """A folder with a run in it is only touched to resume it, with the settings that make it that run."""
    try:
        str(config.folder).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the name of the run's folder, {printable(config.folder)}, is not UTF-8, and safetensors opens no file in "
            "such a folder; name another with --out"
        ) from error
    there = next(path for path in (config.folder, *config.folder.absolute().parents) if os.path.exists(path))
    if not os.path.isdir(there):
        raise ValueError(f"there can be no folder {config.folder}, as {there} is a file; name another with --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"no permission to write in {there}; name another folder with --out")
    if not resume:
        _check_outside_of_images(config)
    if not resume and any((config.folder / name).exists() for name in (CONFIG, CHECKPOINTS)):
        raise ValueError(
            f"there is a run in {config.folder}; go on with it by --resume, or start another one with another --out"
        )
    if not (config.folder / CONFIG).exists():
        return
    saved = TrainConfig(**read_yaml(config.folder / CONFIG))
    for name in sorted(FIXED):
        if getattr(config, name) != getattr(saved, name):
            raise ValueError(
                f"the run in {config.folder} has {name} = {getattr(saved, name)!r}, so it cannot be resumed with "
                f"{getattr(config, name)!r}; leave the setting out, or start another run with another --out"
            )


def _check_outside_of_images(config: TrainConfig) -> None:
    """The pictures of a report must not become a class of the images that it is about."""
    images, folder = os.path.expanduser(config.data), Path(os.path.realpath(config.folder))
    if config.data not in CATALOG and os.path.isdir(images) and folder.is_relative_to(os.path.realpath(images)):
        raise ValueError(
            f"the folder of the run, {config.folder}, is inside of the images, {config.data}, and would be taken for a "
            "class of them; name a folder outside with --out"
        )


@contextlib.contextmanager
def held(config: TrainConfig, resume: bool) -> Iterator[None]:
    """Keep other processes out of a run's folder, from the first look at it to the report."""
    check_folder(config, resume)  # first: what is refused leaves no trace
    with locked(config.folder / LOCK):
        check_folder(config, resume)  # another process may have been faster
        for path in [*config.folder.glob(".*"), *(config.folder / CHECKPOINTS).glob(".*")]:
            if is_left_over(path):  # of a process that was killed
                path.unlink()
        yield


def set_aside(folder: Path) -> Path:
    """Move what a run would overwrite as it starts from the beginning to a new folder in its own; returns that."""
    from gevit.persistence import WEIGHTS  # and torch with it, which the flags of a run do without

    kept = next(path for number in itertools.count(1) if not (path := folder / f"before-restart-{number}").exists())
    kept.mkdir()
    for name in (CHECKPOINTS, WEIGHTS, "model.json", "steps.csv", "metrics.csv", "tensorboard", *REPORTS):
        if (folder / name).exists():
            (folder / name).rename(kept / name)
    return kept


def write_config(config: TrainConfig) -> None:
    """Make the folder the run's: from now on it takes --resume to use it."""
    with write_aside(config.folder / CONFIG) as aside:
        aside.write_text(config.to_yaml(), encoding="utf-8")
