"""The end of a run: the best weights meet the test images, once, and the report is written."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from gevit.data import DataSet
from gevit.data.dataset import choose
from gevit.environment import joined
from gevit.evaluation.evaluate import accuracy_by_angle, equivariance_of, evaluate
from gevit.models.base import count_parameters
from gevit.models.info import ModelInfo
from gevit.persistence import WEIGHTS, save
from gevit.rendering.words import epoch_number, printable
from gevit.training.checkpoint import RunState
from gevit.training.config import TrainConfig
from gevit.training.display import Display
from gevit.training.report import RunRecord, write_report
from gevit.training.setup import make_model
from gevit.training.stopping import ANGLES

# Enough to see the shape of the curve, few enough to take seconds.
IMAGES_BY_ANGLE, IMAGES_FOR_EQUIVARIANCE = 100, 4


def images_to_test(data: DataSet, order: int) -> tuple[int, int]:
    """How many images `finish` gives to a model of a group of this order: as they are, and rotated ones at most."""
    shown = 2 * IMAGES_FOR_EQUIVARIANCE * (order + 4)  # logits and maps of each as it is, transformed, and translated
    return len(data.test) + shown, ANGLES * min(IMAGES_BY_ANGLE, len(data.test))


def finish(
    config: TrainConfig,
    info: ModelInfo,
    data: DataSet,
    label: str,
    state: RunState,
    device: torch.device,
    display: Display,
    batch_size: int,
    rotated: int,
) -> dict[str, Any]:
    """Test the best weights, write `model.safetensors` with what is known of it, and the report; returns its facts.

    Args:
        config: of the run.
        info: of its model.
        data: that it is tested on.
        label: what to call them.
        state: the run at its end.
        device: where to test.
        display: told how far it is.
        batch_size: images at a time.
        rotated: how many rotated images there is time for, of all angles together.
    """
    best = state.progress.best
    assert best is not None, "a run has at least one epoch"
    model: Any = make_model(config, info)
    model.load_state_dict(state.best_weights)
    model.eval().to(device)
    display.say(f"testing the weights of epoch {epoch_number(best['epoch'])}, the best on validation")
    with display.bar("testing", len(data.test)) as progress:
        test = evaluate(model, data.test, info.normalize, batch_size, progress)
    some = choose(data.test.labels, rotated // ANGLES)
    angles = [360 * k / ANGLES for k in range(ANGLES)]
    with display.bar("testing rotated images", ANGLES * len(some)) as progress:
        by_angle = accuracy_by_angle(
            model, data.test.images(some), data.test.labels[some], info.normalize, angles, batch_size, progress
        )
    images = info.normalize(data.test.images(choose(data.test.labels, IMAGES_FOR_EQUIVARIANCE)))
    logits, maps = equivariance_of(model, images)
    record = RunRecord(
        title=f"{config.model} on {label}",
        config=dataclasses.asdict(config),
        command=state.progress.command,
        environment=joined(state.progress.environments),
        parameters=count_parameters(model),
        history=state.progress.history,
        best_epoch=best["epoch"],
        seconds=state.progress.seconds,
        data_note=data.note,
        test=test,
        equivariance=logits,
        equivariance_maps=maps,
        by_angle=by_angle,
        by_angle_images=len(some),
        classes=data.classes,
    )
    trained = {
        **info.trained,
        "seed": config.seed,
        **best,
        "test_accuracy": test.accuracy,
        "test_balanced_accuracy": test.balanced_accuracy,
        "test_macro_f1": test.macro_f1,
        "test_images": test.n,
        "training_seconds": state.progress.seconds,
        "command": printable(state.progress.command),  # a name in it may be no text
    }
    save(model, dataclasses.replace(info, trained=trained), config.folder / WEIGHTS)
    write_report(config.folder, record)
    return {
        "model": str(config.folder / WEIGHTS),
        "report": str(config.folder / "report.html"),
        "parameters": record.parameters,
        "best_epoch": record.best_epoch,
        "select": config.select,
        **{name: value for name, value in best.items() if name.startswith("valid_")},
        "test_accuracy": test.accuracy,
        "test_balanced_accuracy": test.balanced_accuracy,
        "test_macro_f1": test.macro_f1,
        "equivariance": {
            "group": str(model.group),
            "logits": record.equivariance.worst,
            "feature_maps": record.equivariance_maps.worst,
        },
        "seconds": record.seconds,
    }
