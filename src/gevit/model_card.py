"""The card of a model: what it is, how to use it, and what is known of its quality, in Markdown as the hub shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gevit.evaluation import presentation
from gevit.evaluation.metrics import ClassScores, Evaluation
from gevit.evaluation.predict import expected_images
from gevit.models.base import EquivariantModel, count_parameters
from gevit.models.info import ModelInfo
from gevit.persistence import HUB_CONFIG, WEIGHTS, is_as_loaded
from gevit.rendering import escape
from gevit.rendering.words import printable

CARD = "README.md"
REPORT = "report.json"
LIBRARY = "library_name"
TAGS = ("equivariance", "vision-transformer", "image-classification")

USE = """
```python
import gevit

model = gevit.from_pretrained("FOLDER-OR-REPOSITORY")  # in evaluation mode
logits = model(model.info.normalize(pixels))  # pixels in [0, 1], [batch, {channels}, {side}, {side}]
```
""".strip()


def model_card(model: EquivariantModel) -> str:
    """The card of a model.

    Of a model that is as it was loaded, the card tells what stands beside its file: the report of its run, the card of
    shipped weights, or the card of a folder of `save_pretrained`, which is taken as it is.
    """
    info, source = model.describe(), model.origin if is_as_loaded(model) else None
    if source and (card := _saved_card(source)):
        return card
    report = _read_report(source.parent / REPORT) if source and (source.parent / REPORT).is_file() else None
    if report and report["test"].accuracy != info.trained.get("test_accuracy"):
        report = None  # of other weights
    sections = [
        _front_matter(info, report["test"].accuracy if report else source and info.trained.get("test_accuracy")),
        f"# {escape.markdown(_title(info))}",
        _introduction(model, info),
        "## Use",
        USE.format(channels=info.in_channels, side=info.image_size),
        f"It takes {escape.markdown(expected_images(info))}." if info.data else "",
        f"Classes: {escape.markdown(', '.join(info.classes))}." if info.classes else "",
        *(_from_report(report) if report else _from_card(source) if source else []),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _saved_card(weights: Path) -> str:
    """The card that `save_pretrained` wrote with these weights; the `README.md` of something else is none."""
    card = weights.parent / CARD
    if weights.name != WEIGHTS or not card.is_file():
        return ""
    text = card.read_text(encoding="utf-8", errors="backslashreplace")
    is_hub_folder = (weights.parent / HUB_CONFIG).is_file() and not weights.with_suffix(".json").exists()
    return text if is_hub_folder or text.startswith(f'---\n{LIBRARY}: "gevit"\n') else ""


def _title(info: ModelInfo) -> str:
    return f"{info.name}, {info.preset} architecture" + (f", trained on {info.data}" if info.data else "")


def _introduction(model: EquivariantModel, info: ModelInfo) -> str:
    parameters = count_parameters(model)
    kind = "classifier" if info.num_classes else "feature extractor"
    return (
        f"An image {kind} of {parameters:,} parameters, built with gevit on the group {model.group}: translations"
        + (f" and {model.group.order} rotations and reflections." if model.group.order > 1 else " alone.")
    )


def _front_matter(info: ModelInfo, accuracy: object) -> str:
    """What the hub reads: YAML, whose values are written as JSON, which is YAML too."""
    facts: dict[str, Any] = {
        LIBRARY: "gevit",
        "pipeline_tag": "image-classification" if info.num_classes else "image-feature-extraction",
        "tags": [*TAGS, info.name],
    }
    if info.data and isinstance(accuracy, float):
        facts["model-index"] = [
            {
                "name": _title(info),
                "results": [
                    {
                        "task": {"type": "image-classification"},
                        "dataset": {"name": info.data, "type": info.data, "split": "test"},
                        "metrics": [{"type": "accuracy", "value": accuracy}],
                    }
                ],
            }
        ]
    lines = [f"{name}: {json.dumps(value)}" for name, value in facts.items()]
    return "\n".join(["---", *lines, "---"])


def _read_report(path: Path) -> dict[str, Any]:
    """The report of a run, with the scores of the test as an `Evaluation`."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        test = report["test"]
        scores = tuple(ClassScores(**row) for row in test["per_class"])
        confusion = tuple(map(tuple, test["confusion"]))
        report["test"] = Evaluation(test["n"], test["loss"], test["accuracy"], confusion, scores, test["auc"])
        report["by_angle"] = {float(angle): share for angle, share in report["by_angle"].items()}
        _from_report(report)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise ValueError(
            f"{path} is not the report of a training run ({type(error).__name__}: {error}); "
            "remove it to have a card without scores"
        ) from error
    return dict(report)


def _from_report(report: dict[str, Any]) -> list[str]:
    test, versions = report["test"], report["environment"]
    return [
        "## Scores on test images",
        presentation.summary_table("", test).to_markdown(),
        presentation.class_table(report["classes"], test).to_markdown(),
        "## Equivariance",
        "Relative error: how far the logits of a transformed test image are from those of the image, and its feature "
        "maps from the transformed feature maps.",
        presentation.equivariance_table(report["equivariance"]).to_markdown(),
        "Accuracy against rotation angle:",
        presentation.angle_table(report["by_angle"], report["by_angle_images"]).to_markdown(),
        "## Training",
        f"Data: {escape.markdown(report['data_note'])}.",
        f"```sh\n{printable(report['command'])}\n```",
        f"With gevit {escape.markdown(versions['gevit'])} and torch {escape.markdown(versions['torch'])}.",
    ]


def _from_card(weights: Path) -> list[str]:
    """The card of shipped weights, below its title; there may be none."""
    card = weights.with_suffix(".md")
    return [card.read_text(encoding="utf-8").partition("\n")[2].strip()] if card.is_file() else []
