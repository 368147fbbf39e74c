"""The classes of image files."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from gevit.data.archive import NAMES, Location
from gevit.data.decode import SUFFIXES, UnreadableImage, read_image
from gevit.data.folder import image_files, located
from gevit.evaluation.evaluate import predict_logits
from gevit.models.base import info_of
from gevit.models.info import ModelInfo


@dataclass(frozen=True)
class Prediction:
    """What a model says of an image file.

    Attributes:
        path: the file, or the member of an archive.
        classes: names of the most probable classes, best first.
        probabilities: of those classes.
        looks_inverted: whether the image looks like the negative of what the model was trained on.
        error: why the file could not be read; there are no classes then.
    """

    path: Location
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    looks_inverted: bool = False
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """As plain types."""
        if self.error:
            return {"file": str(self.path), "error": self.error}
        top = [
            {"class": name, "probability": probability}
            for name, probability in zip(self.classes, self.probabilities, strict=True)
        ]
        return {"file": str(self.path), **top[0], "top": top, "looks_inverted": self.looks_inverted}


def find_images(patterns: Iterable[str]) -> list[Location]:
    """The files that names, folders and archives (with all images in them) and globs stand for, each once, in order.

    A file that exists under a name with a wildcard in it is meant by that name.
    """
    found: list[Location] = []
    for pattern in patterns:
        if not pattern:  # as of a variable that is not set; it would be the current folder
            raise ValueError("the name of an image is empty; give files, folders of them, or quoted globs")
        path = Path(pattern)
        is_glob = glob.has_magic(pattern) and not path.exists()
        paths = [Path(name) for name in sorted(glob.glob(pattern, recursive=True))] if is_glob else [path]
        if not paths:
            raise ValueError(f"no file matches {pattern}")
        for path in paths:
            several = path.is_dir() or (path.is_file() and NAMES.search(path.name))
            files = image_files(located(path)) if several else [path]
            if not files and len(paths) == 1:
                raise ValueError(f"no images in {path}; expected files ending in {', '.join(sorted(SUFFIXES))}")
            found += files
    return list(dict.fromkeys(found))


def predict(
    model: nn.Module, paths: Sequence[Location], top: int = 1, batch_size: int = 64, invert: bool = False
) -> Iterator[Prediction]:
    """Predict image files, in order; files that cannot be read say so instead.

    Args:
        model: from `gevit.load`, as it is or in an `Orbit`.
        paths: the files.
        top: how many of the most probable classes.
        batch_size: images at a time.
        invert: take the negative of every image, for dark on bright where the model knows bright on dark.
    """
    info = info_of(model)
    if not info.num_classes:
        raise ValueError("this model gives features and has no classes (num_classes=0): predict with a classifier")
    for start in range(0, len(paths), batch_size):
        read = {path: _read(path, info, invert) for path in paths[start : start + batch_size]}
        images = [image for image in read.values() if isinstance(image, Tensor)]
        answers = iter(_most_probable(model, torch.stack(images), top)) if images else iter(())
        for path, image in read.items():
            if isinstance(image, Tensor):
                yield Prediction(path, *next(answers), looks_inverted=looks_inverted(image, info))
            else:
                yield Prediction(path, error=image)


def looks_inverted(image: Float[Tensor, "channels side side"], info: ModelInfo) -> bool:
    """Whether a grey image, pixels in [0, 1], is more than twice as near in brightness to negatives of its kind.

    Where the images trained on were not clearly bright on dark or dark on bright, that tells nothing: False. Nor does
    it of colours and bands: a photograph of a bright field is not the negative of one of a dark forest.
    """
    if not contrast(info):
        return False
    brightness, [usual] = float(image.mean()), info.mean
    return 2 * abs(brightness - (1 - usual)) < abs(brightness - usual)


def contrast(info: ModelInfo) -> str:
    """Which of foreground and background was bright in the grey images trained on; empty if neither was, clearly."""
    if info.in_channels != 1:
        return ""
    [usual] = info.mean
    return "bright on dark" if 0 <= usual < 0.3 else "dark on bright" if 0.7 < usual <= 1 else ""


def expected_images(info: ModelInfo) -> str:
    """What images the weights expect, in words.

    >>> expected_images(ModelInfo(name="r4_sa", preset="rotmnist", in_channels=1, num_classes=1, classes=("0",),
    ...     image_size=28, mean=(0.1307,), std=(0.3081,), data="digits"))
    'grey images, bright on dark (mean brightness 0.13), as in digits; they are scaled to 28x28'
    """
    usual = float(np.mean(info.mean))
    colour = {1: "grey", 3: "colour"}.get(info.in_channels, f"{info.in_channels}-band")
    source = f", as in {info.data}" if info.data else ""
    size = f"{info.image_size}x{info.image_size}"
    known = f", {contrast(info)}" if contrast(info) else ""
    return f"{colour} images{known} (mean brightness {usual:.2f}){source}; they are scaled to {size}"


def _most_probable(
    model: nn.Module, images: Float[Tensor, "n channels side side"], top: int
) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
    info = info_of(model)
    probabilities = predict_logits(model, info.normalize(images)).softmax(1)
    for values, indices in zip(*probabilities.topk(min(top, info.num_classes)), strict=True):
        yield tuple(info.classes[index] for index in indices.tolist()), tuple(values.tolist())


def _read(path: Location, info: ModelInfo, invert: bool) -> Float[Tensor, "channels side side"] | str:
    """The pixels of a file in [0, 1], or what is wrong with it."""
    try:
        image = read_image(path, info.image_size, info.in_channels)
    except UnreadableImage as error:
        return error.reason
    return 1 - image if invert else image
