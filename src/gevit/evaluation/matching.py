"""Whether a model and a data set belong together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gevit.data import DataSet, Split, list_datasets, open_dataset
from gevit.data.catalog import open_all
from gevit.data.dataset import is_other_data
from gevit.models.info import ModelInfo

ALL = "all"  # images, of whichever split


@dataclass(frozen=True)
class ScoredImages:
    """Images with known classes that a model is tested on.

    Attributes:
        data: the name of the data.
        title: which images of it they are.
        split: the images, labelled as the model's classes are numbered.
        doubts: why they may flatter the model.
    """

    data: str
    title: str
    split: Split
    doubts: tuple[str, ...]

    @staticmethod
    def of(info: ModelInfo, data: DataSet, split: str) -> ScoredImages:
        """A split of a data set."""
        return ScoredImages(data.name, data.title(split), data.split(split), doubts(info, data, split))


def open_images(
    info: ModelInfo, name: str, split: str, root: Path | None = None, skip_corrupt: bool = False
) -> ScoredImages:
    """Open a split of a data set as the model takes it, or `all` images of a folder or archive.

    Args:
        info: of the model.
        name: of the data set, or a path.
        split: which images; `all` images may be few of a class, or of some of the model's classes only.
        root: where named sets are stored.
        skip_corrupt: leave out files that cannot be decoded.
    """
    if split != ALL:
        return ScoredImages.of(info, open_matching(info, name, root, skip_corrupt), split)
    label, images = open_all(name, info.classes, info.image_size, info.in_channels, skip_corrupt)
    trained = (
        f"the model was trained on a folder of the same name, {label}: if it is this one, these images include those "
        "that it was trained on; use --split test, or images of another folder"
    )
    return ScoredImages(label, f"{label}, all images", images, (trained,) if label == info.data else ())


def doubts(info: ModelInfo, data: DataSet, split: str) -> tuple[str, ...]:
    """Why the numbers of a split may flatter the model."""
    trained_on = info.trained.get("data_digest")  # models of earlier versions do not know
    known = isinstance(trained_on, str)  # and those of others may say anything
    if split not in data.drawn or not (known and is_other_data(trained_on, data.digest)):
        return ()
    if data.name == info.data:
        return (
            f"the folder {data.name} has changed since the model was trained on it, and its splits are drawn whenever "
            f"it is opened: these are not the {split} images of then, and may include images that it was trained on; "
            "to keep them apart, put the images into folders train, valid and test, and train again",
        )
    return (
        f"the splits of {data.name} are drawn whenever it is opened, and it is not what the model was trained on"
        f"{f', {info.data}' if info.data else ''}: if it has images of that, the {split} images may include some of "
        "them; if it has none, gevit evaluate --split all scores all of it",
    )


def open_matching(info: ModelInfo, name: str, root: str | Path | None = None, skip_corrupt: bool = False) -> DataSet:
    """A data set as the model takes it; one that the model was not made for is refused.

    Images are brought to the size and the channels of the model; a named set has its own channels, which must fit.

    Args:
        info: of the model.
        name: of the data set, or a folder or archive of images.
        root: where the named sets are.
        skip_corrupt: whether to leave out files that cannot be decoded.
    """
    channels = None if name in list_datasets() else info.in_channels
    data = open_dataset(name, root, image_size=info.image_size, channels=channels, skip_corrupt=skip_corrupt)
    _check_match(info, data)
    return data


def _check_match(info: ModelInfo, data: DataSet) -> None:
    """Refuse data that the model was not made for."""
    if data.channels != info.in_channels:
        raise ValueError(
            f"the model takes images of {info.in_channels} channels, those of {data.name} have {data.channels}; "
            f"it was trained on {info.data or 'other data'}"
        )
    if data.classes != info.classes:
        raise ValueError(
            f"the model knows the classes {_list(info.classes)}, {data.name} has {_list(data.classes)}: "
            "they must be the same, in the same order"
        )


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names[:8]) + (f" ... ({len(names)} in all)" if len(names) > 8 else "")
