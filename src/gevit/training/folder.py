"""The folder of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gevit.files import write_aside
from gevit.training.config import TrainConfig, read_yaml

CONFIG, CHECKPOINTS = "config.yaml", "checkpoints"
# What must stay when a run is resumed: with another value it would be another run, or its weights would not fit.
FIXED = {
    *("model", "data", "preset", "encoding", "neighborhood", "pooling", "image_size", "skip_corrupt"),
    *("limit_train", "limit_valid", "limit_test", "batch_size", "optimizer", "ema", "seed", "start_from"),
}


def resumed_config(folder: Path, given: dict[str, Any]) -> TrainConfig:
    """The settings of the run in a folder, with those that are given anew and may change."""
    saved = TrainConfig(**read_yaml(folder / CONFIG))
    wanted = TrainConfig(**{**vars(saved), **given, "out": str(folder)})
    for name in sorted(FIXED):
        if getattr(wanted, name) != getattr(saved, name):
            raise ValueError(
                f"the run in {folder} has {name} = {getattr(saved, name)!r}, so it cannot be resumed with "
                f"{getattr(wanted, name)!r}; leave the setting out, or start another run with another --out"
            )
    return wanted


def check_folder(config: TrainConfig, resume: bool) -> None:
    """A folder with a run in it is only touched to resume it."""
    if not resume and any((config.folder / name).exists() for name in (CONFIG, CHECKPOINTS)):
        raise ValueError(
            f"there is a run in {config.folder}; go on with it by --resume, or start another one with another --out"
        )


def claim_folder(config: TrainConfig) -> None:
    """Make the folder, write the settings, and clear away what a killed process left half-written."""
    folder = config.folder
    for leftover in [*folder.glob(".*.*.*"), *(folder / CHECKPOINTS).glob(".*.*.*")]:
        leftover.unlink()
    with write_aside(folder / CONFIG) as aside:
        aside.write_text(config.to_yaml(), encoding="utf-8")
