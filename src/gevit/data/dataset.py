"""What a data set is: three splits of labelled images, the names of the classes, and how to normalise pixels."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt
from torch import Tensor

from gevit._checks import check_choice, check_count

SPLITS = ("train", "valid", "test")
# Of one image, as it is stored or scaled to. 8,000 x 8,000 are 200 MB of colour, and several times that while decoding.
MOST_PIXELS = 64_000_000
DIGEST_VERSION = "v2:"  # those of before had no version, and covered the note and not the pixels


class Split(ABC):
    """The images of one split, with their labels.

    Attributes:
        labels: the class of every image, as int64.
    """

    labels: Int[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, indices: Int[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
        """The images with these indices, in this order (repeats are fine), as float32, in [0, 1].

        Floats of files that hold such are as they are there.
        """
        if indices.ndim != 1 or indices.is_floating_point():
            raise ValueError(
                f"indices must be one axis of integers, got {indices.dtype} of shape {tuple(indices.shape)}"
            )
        outside = indices[(indices < 0) | (indices >= len(self))]
        if len(outside):
            raise IndexError(f"index {int(outside[0])} is outside this split of {len(self)} images")
        return self._read(indices)

    def subset(self, indices: Int[Tensor, " m"]) -> Split:
        """The split of these images alone; the pixels are shared, not copied."""
        return Subset(self, indices)

    def name_of(self, index: int) -> str:
        """What to call an image: its file, where it has one of its own, else its number."""
        return f"image {index + 1}"

    def fingerprint(self) -> bytes:
        """Tells these images, in this order, from others; a split that need not read them all for it says how."""
        digest = hashlib.sha256()
        for indices in torch.arange(len(self)).split(64):
            digest.update(self.images(indices).contiguous().numpy().data)
        return digest.digest()

    @abstractmethod
    def _read(self, indices: Int[Tensor, " b"]) -> Float[Tensor, "b c h w"]: ...


class Subset(Split):
    """Some images of another split."""

    def __init__(self, whole: Split, indices: Int[Tensor, " m"]) -> None:
        self._whole, self._indices = whole, indices
        self.labels = whole.labels[indices]

    def _read(self, indices: Int[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
        return self._whole.images(self._indices[indices])

    def name_of(self, index: int) -> str:
        """That in the whole."""
        return self._whole.name_of(int(self._indices[index]))

    def fingerprint(self) -> bytes:
        """That of the whole, and which images of it."""
        return hashlib.sha256(self._whole.fingerprint() + self._indices.numpy().tobytes()).digest()


class Resized(Split):
    """Another split's images scaled to another size."""

    def __init__(self, split: Split, image_size: int) -> None:
        self._split, self._size = split, (image_size, image_size)
        self.labels = split.labels

    def _read(self, indices: Int[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
        return F.interpolate(self._split.images(indices), self._size, mode="bilinear", antialias=True)

    def name_of(self, index: int) -> str:
        """That of the image before it is scaled."""
        return self._split.name_of(index)

    def fingerprint(self) -> bytes:
        """That of the images before they are scaled; the data set knows to which size."""
        return self._split.fingerprint()


class MemorySplit(Split):
    """Images held in memory as integers of 8 or 16 bits; only those asked for become floats."""

    def __init__(self, images: UInt[Tensor, "n c h w"], labels: Int[Tensor, " n"]) -> None:
        self._images = images
        self.labels = labels.long()

    def _read(self, indices: Int[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
        return self._images[indices].float() / torch.iinfo(self._images.dtype).max

    def fingerprint(self) -> bytes:
        """Of all pixels, as they are held."""
        return hashlib.sha256(self._images.contiguous().numpy().data).digest()


@dataclass(frozen=True)
class DataSet:
    """Labelled square images in three splits.

    Attributes:
        name: an honest label, such as `rotmnist-rebuilt`.
        classes: names of the classes; a label is an index into them.
        channels: of every image.
        image_size: side of every image.
        mean: of every channel, for pixels in [0, 1].
        std: spread of every channel.
        train: what is learned from.
        valid: what decisions are made on.
        test: what is reported.
        note: where it is from and how it was split, in one sentence.
        drawn: the splits that were drawn at random from common images when the set was opened: which images they get
            changes as soon as one is added or removed.
        whole: whether all images of the set that it is named after are there.
    """

    name: str
    classes: tuple[str, ...]
    channels: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: Split
    valid: Split
    test: Split
    note: str
    drawn: tuple[str, ...] = ()
    whole: bool = True

    def __post_init__(self) -> None:
        for name in SPLITS:
            labels = self.split(name).labels
            if not len(labels):
                raise ValueError(f"the {name} split of {self.name} has no images")
            check_labels(labels, len(self.classes), f"the {name} split of {self.name}")

    def split(self, name: str) -> Split:
        """The split of this name: `train`, `valid` or `test`."""
        split: Split = getattr(self, check_choice("split", name, SPLITS))
        return split

    def resized(self, image_size: int) -> DataSet:
        """The same images, scaled to squares of this side as they are read; the note says so."""
        check_image_size(image_size)
        if image_size == self.image_size:
            return self
        splits = {name: Resized(self.split(name), image_size) for name in SPLITS}
        note = f"{self.note}; scaled from {self.image_size}x{self.image_size} to {image_size}x{image_size}"
        return dataclasses.replace(self, image_size=image_size, note=note, **splits)  # type: ignore[arg-type]

    @property
    def label(self) -> str:
        """The name for tables, which does not promise more than there is."""
        return self.name if self.whole else f"{self.name} sample"

    def title(self, split: str) -> str:
        """What to call a split in tables; of one that was drawn at random also how many of the images it has."""
        title, images = f"{self.label}, {split}", sum(len(self.split(name)) for name in self.drawn)
        return f"{title} ({len(self.split(split)):,} of {images:,} images)" if split in self.drawn else title

    @functools.cached_property
    def digest(self) -> str:
        """Tells data apart by what is learned and measured: pixels, labels, classes, shape and normalisation.

        It does not depend on names and notes, nor on where the files are. Of images that are read from a large file as
        they are asked for, a sample is looked at (see `gevit.data.pcam`). Compare two by `is_other_data`.
        """
        mean, std = ([f"{value:.4f}" for value in values] for values in (self.mean, self.std))
        digest = hashlib.sha256(repr((self.classes, self.channels, self.image_size, mean, std)).encode())
        for name in SPLITS:
            split = self.split(name)
            digest.update(name.encode() + split.labels.numpy().tobytes() + split.fingerprint())
        return DIGEST_VERSION + digest.hexdigest()

    def normalize(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Shift and scale pixels in [0, 1] by the mean and spread of every channel: (x - mean) / std."""
        mean, std = (torch.tensor(values).to(images)[:, None, None] for values in (self.mean, self.std))
        return (images - mean) / std


def is_other_data(one: str | None, another: str | None) -> bool:
    """Whether two digests are known to be of different data: those of different versions, or None, say nothing.

    >>> is_other_data("v2:1a", "v2:1b"), is_other_data("v2:1a", "1b"), is_other_data("v2:1a", None)
    (True, False, False)
    """
    if one is None or another is None or one.startswith(DIGEST_VERSION) != another.startswith(DIGEST_VERSION):
        return False
    return one != another


def check_image_size(size: int) -> int:
    """Return `size` if images can have this side."""
    if check_count("image_size", size) ** 2 > MOST_PIXELS:
        raise ValueError(f"image_size must be at most {math.isqrt(MOST_PIXELS):,}, got {size:,}")
    return size


def check_labels(labels: Int[Tensor, " n"], classes: int, where: str) -> None:
    """Raise `ValueError` unless all labels are those of `classes` classes, naming the first that is not."""
    wrong = ((labels < 0) | (labels >= classes)).nonzero().flatten()
    if len(wrong):
        first = int(wrong[0])
        raise ValueError(
            f"image {first} of {where} has label {int(labels[first])}, expected 0 to {classes - 1} "
            f"({len(wrong)} of {len(labels)} labels are wrong)"
        )


def stratified_split(labels: Int[Tensor, " n"], fractions: Sequence[float], seed: int) -> tuple[Int[Tensor, " _"], ...]:
    """Cut off a fraction of every class for each of `fractions`, at least one image; the rest comes first.

    Which images go where, and their order within a part, is random but for the seed.

    >>> labels = torch.arange(20) % 2
    >>> [part.numel() for part in stratified_split(labels, (0.1, 0.1), seed=0)]
    [16, 2, 2]
    """
    random = np.random.default_rng(seed)
    parts: list[list[Tensor]] = [[] for _ in range(1 + len(fractions))]
    for label in labels.unique():
        members = (labels == label).nonzero().flatten()
        members = members[torch.from_numpy(random.permutation(len(members)))]
        for part, fraction in zip(parts[1:], fractions, strict=True):
            size = max(1, round(fraction * int((labels == label).sum())))
            part.append(members[:size])
            members = members[size:]
        parts[0].append(members)
    return tuple(_shuffled(torch.cat(part), random) for part in parts)


def choose(labels: Int[Tensor, " n"], limit: int) -> Int[Tensor, " chosen"]:
    """Indices, in order, of up to `limit` images: the same share of every class, and always the same images.

    >>> labels = torch.tensor([0] * 60 + [1] * 40)
    >>> labels[choose(labels, 10)].tolist()
    [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    by_class = labels[order].argsort(stable=True)
    sizes = labels.bincount()
    rank = torch.empty_like(order)
    rank[by_class] = torch.arange(len(order)) - (sizes.cumsum(0) - sizes)[labels[order[by_class]]]
    # How far into its class each image comes, from 0 to 1: the earliest of all classes are taken.
    depth = (rank + 0.5) / sizes[labels[order]]
    return order[depth.argsort(stable=True)[:limit]].sort().values


def _shuffled(indices: Tensor, random: np.random.Generator) -> Tensor:
    return indices[torch.from_numpy(random.permutation(len(indices)))]
