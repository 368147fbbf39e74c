"""The end of a run: the best weights meet the test images, once, and the report is written."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch

from gevit.data import DataSet, Split
from gevit.data.dataset import choose
from gevit.environment import joined
from gevit.equivariance import Report
from gevit.evaluation.evaluate import accuracy_by_angle, equivariance_of, evaluate
from gevit.evaluation.metrics import Evaluation
from gevit.models.base import EquivariantModel, count_parameters
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
    model = make_model(config, info)
    model.load_state_dict(state.best_weights)
    model.eval().to(device)
    display.say(f"testing the weights of epoch {epoch_number(best['epoch'])}, the best on validation")
    measured = _measure(model, info, data.test, display, batch_size, rotated // ANGLES)
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
        classes=data.classes,
        **measured._asdict(),
    )
    trained = {
        **info.trained,
        "seed": config.seed,
        **best,
        **_scores(measured.test),
        "test_images": measured.test.n,
        "training_seconds": record.seconds,
        "command": printable(record.command),  # a name in it may be no text
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
        **_scores(measured.test),
        "equivariance": {
            "group": str(model.group),
            "logits": measured.equivariance.worst,
            "feature_maps": measured.equivariance_maps.worst,
        },
        "seconds": record.seconds,
    }


class _Measured(NamedTuple):
    """What the test images say of a model, by the names of `RunRecord`."""

    test: Evaluation
    equivariance: Report
    equivariance_maps: Report
    by_angle: dict[float, float]
    by_angle_images: int


def _measure(
    model: EquivariantModel, info: ModelInfo, images: Split, display: Display, batch_size: int, rotated: int
) -> _Measured:
    """Test a model on all images as they are, and on so many rotated by every angle."""
    with display.bar("testing", len(images)) as progress:
        test = evaluate(model, images, info.normalize, batch_size, progress)
    some = choose(images.labels, rotated)
    angles = [360 * k / ANGLES for k in range(ANGLES)]
    with display.bar("testing rotated images", ANGLES * len(some)) as progress:
        by_angle = accuracy_by_angle(
            model, images.images(some), images.labels[some], info.normalize, angles, batch_size, progress
        )
    few = images.images(choose(images.labels, IMAGES_FOR_EQUIVARIANCE))
    logits, maps = equivariance_of(model, info.normalize(few))
    return _Measured(test, logits, maps, by_angle, len(some))


def _scores(test: Evaluation) -> dict[str, float]:
    """As they are called in what is known of a model, and in the outcome of a run."""
    return {
        "test_accuracy": test.accuracy,
        "test_balanced_accuracy": test.balanced_accuracy,
        "test_macro_f1": test.macro_f1,
    }
