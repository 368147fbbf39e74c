"""The folder of a run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gevit.files import is_left_over, write_aside
from gevit.training.config import TrainConfig, read_yaml

CONFIG, CHECKPOINTS, LOCK = "config.yaml", "checkpoints", "lock"
# What may change when a run is resumed: with another value of the rest it would be another run.
MAY_CHANGE = {
    *("lr", "schedule", "epochs", "warmup_epochs", "cooldown_epochs"),
    *("data_root", "out", "workers", "backend", "accumulate", "accelerator", "devices", "nodes"),
    *("checkpoint_seconds", "wandb"),
}
FIXED = {field.name for field in dataclasses.fields(TrainConfig)} - MAY_CHANGE


def resumed_config(folder: Path, given: dict[str, Any]) -> TrainConfig:
    """The settings of the run in a folder, with those that are given anew and may change."""
    saved = read_yaml(folder / CONFIG)
    return TrainConfig(**{**saved, **given, "out": str(folder)})


def check_folder(config: TrainConfig, resume: bool) -> None:
    """A folder with a run in it is only touched to resume it, with the settings that make it that run."""
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


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run's folder; one that is killed lets go."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.name != "posix":
        yield
        return
    import fcntl

    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # workers do not inherit it, as they would that of flock
        except OSError:
            raise OSError(f"another process is running {folder}; wait for it, or stop it, and start again") from None
        yield


def claim_folder(config: TrainConfig) -> None:
    """Make the folder, write the settings, and clear away what a killed process left half-written."""
    folder = config.folder
    for path in [*folder.glob(".*"), *(folder / CHECKPOINTS).glob(".*")]:
        if is_left_over(path):
            path.unlink()
    with write_aside(folder / CONFIG) as aside:
        aside.write_text(config.to_yaml(), encoding="utf-8")
