"""Whether a model and a data set belong together."""

from __future__ import annotations

from gevit.data import DataSet
from gevit.models.info import ModelInfo


def check_match(info: ModelInfo, data: DataSet) -> None:
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
