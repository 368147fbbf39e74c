"""The result of a run as a JSON file that shows whether it was changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gevit.files import write_aside

# To be raised whenever results of before are no longer comparable, or no longer readable.
FORMAT = 2
IDENTITY = ("study", "budget", "run", "seed")
REMEDY = "move it away, and the same command makes it again"


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        study: the table it is of.
        budget: how it was trained.
        run: the key of its cells.
        seed: of everything random.
        settings: of the training, all that matter.
        data: name of the data set.
        data_note: where it is from and how it was split.
        data_digest: tells it from other data of the same name.
        train_images: how many were trained on.
        valid_images: how many the epoch was chosen on.
        test_images: how many the kept weights were tested on, once.
        test_accuracy: share of the test images that is right.
        valid_accuracy: share of the validation images that is right.
        best_epoch: whose weights were kept.
        parameters: number of weights.
        equivariance_error: the worst relative error of the logits over quarter turns and flips of the model's group.
        by_angle: share of the test images that is right by the angle, in degrees, that they were turned by.
        seconds: of training.
        environment: machine, versions and commit.
        finished: when.
    """

    study: str
    budget: str
    run: str
    seed: int
    settings: Mapping[str, Any]
    data: str
    data_note: str
    data_digest: str
    train_images: int
    valid_images: int
    test_images: int
    test_accuracy: float
    valid_accuracy: float
    best_epoch: int
    parameters: int
    equivariance_error: float
    by_angle: Mapping[str, float]
    seconds: float
    environment: Mapping[str, str]
    finished: str


def accuracy_on_test(result: Result) -> float:
    """Share of the test images that is right."""
    return result.test_accuracy


def mean_over_angles(result: Result) -> float:
    """Accuracy on the turned test images, averaged over all angles."""
    return sum(result.by_angle.values()) / len(result.by_angle)


def worst_angle(result: Result) -> float:
    """Accuracy on the turned test images, at the worst of all angles."""
    return min(result.by_angle.values())


def write_result(path: Path, result: Result) -> None:
    """Write the file, whole or not at all."""
    content = {"format": FORMAT, **asdict(result)}
    with write_aside(path) as aside:
        text = json.dumps({**content, "digest": _digest(content)}, indent=2, ensure_ascii=False, allow_nan=False)
        aside.write_text(text + "\n", encoding="utf-8")


def read_result(path: Path, identity: Mapping[str, Any], settings: Mapping[str, Any]) -> Result:
    """Read a result that must be of this study, budget, run and seed, made with these settings.

    Raises:
        ValueError: it was edited, is of another version, or of something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged, it is not JSON ({error}); {REMEDY}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else None
        raise ValueError(
            f"{path} is the result of another version of gevit: expected format {FORMAT}, found {found!r}; {REMEDY}"
        )
    if content.pop("digest", None) != _digest(content):
        raise ValueError(
            f"{path} was edited by hand or damaged: its content does not match its digest; restore it, or {REMEDY}"
        )
    del content["format"]
    expected = {entry.name for entry in fields(Result)}
    if content.keys() != expected:
        names = ", ".join(sorted(content.keys() ^ expected))
        raise ValueError(f"{path} is the result of another version of gevit, which differs in {names}; {REMEDY}")
    result = Result(**content)
    for name in IDENTITY:
        if getattr(result, name) != identity[name]:
            raise ValueError(
                f"{path} is of {name} {getattr(result, name)!r}, expected {identity[name]!r}: "
                f"it was renamed or copied; {REMEDY}"
            )
    differences = [
        f"{name} = {result.settings.get(name)!r} instead of {settings.get(name)!r}"
        for name in sorted({*settings, *result.settings})
        if result.settings.get(name) != settings.get(name)
    ]
    if differences:
        raise ValueError(
            f"{path} was made with other settings than this version's: {', '.join(differences)}; {REMEDY}, "
            "or choose another --results"
        )
    return result


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
