"""Whether a model and a data set belong together."""

from __future__ import annotations

from pathlib import Path

from gevit.data import DataSet, list_datasets, open_dataset
from gevit.models.info import ModelInfo


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
