"""Image files as a split: each is decoded once when the set is opened, so that a corrupt one is found then.

What fits into a memory budget is kept; the rest is decoded again when it is asked for.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gevit.data.archive import Location, opened, progress_of
from gevit.data.dataset import MOST_PIXELS, Split
from gevit.data.decode import Header, Pixels, as_floats, decode, probe, without_bomb_warnings
from gevit.rendering.words import printable

MEMORY_BUDGET = 2**30
SHOWN = 5
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Checked:
    """A file that can be decoded: its checksum, and its pixels if they are kept."""

    sha256: str
    pixels: Pixels | None


class FileSplit(Split):
    """Image files with their labels; pixels that are not kept in memory are decoded when asked for."""

    def __init__(
        self, checked: Mapping[Location, Checked], labels: Int[Tensor, " n"], size: int, channels: int
    ) -> None:
        self.files, self.labels = list(checked), labels
        self._size, self._channels = size, channels
        self._checked = list(checked.values())

    def _read(self, indices: Int[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
        images = torch.empty(len(indices), self._channels, self._size, self._size)
        for image, index in zip(images, indices.tolist(), strict=True):
            pixels = self._checked[index].pixels
            if pixels is None:
                pixels = decode(self.files[index], self._size, self._channels)
            image[:] = as_floats(pixels)
        return images

    def labelled(self, labels: Int[Tensor, " n"]) -> FileSplit:
        """The same images with other labels."""
        return FileSplit(dict(zip(self.files, self._checked, strict=True)), labels, self._size, self._channels)

    def name_of(self, index: int) -> str:
        """The file and the folder that it is in, which often is its class."""
        return "/".join(Path(str(self.files[index])).parts[-2:])

    def fingerprint(self) -> bytes:
        """Of the content of every file: decoders of different versions may differ in the last bits of a pixel."""
        return hashlib.sha256("".join(checked.sha256 for checked in self._checked).encode()).digest()


def read_headers(files: Sequence[Location]) -> tuple[dict[Location, Header], dict[Location, Exception]]:
    """The headers of image files, and what is wrong with those that have none."""
    return _attempt(probe, files, "reading headers")


def check_images(
    headers: Mapping[Location, Header], size: int, channels: int
) -> tuple[dict[Location, Checked], dict[Location, Exception]]:
    """Decode image files, and say what is wrong with those that cannot be."""
    return _attempt(_Checker(headers, size, channels), list(headers), "checking images")


def report_corrupt(where: Location, corrupt: Mapping[Location, Exception], total: int, skip: bool) -> None:
    """Raise `ValueError` that names the first files that cannot be decoded; if they may be skipped, warn."""
    shown = "; ".join(
        f"{printable(str(file).removeprefix(f'{where}/'))} ({error})" for file, error in list(corrupt.items())[:SHOWN]
    )
    more = f"; and {len(corrupt) - SHOWN} more" if len(corrupt) > SHOWN else ""
    message = f"{len(corrupt)} of {total} images in {where} cannot be decoded: {shown}{more}"
    if not skip:
        raise ValueError(f"{message}. Repair or remove them, or leave them out with skip_corrupt=True (--skip-corrupt)")
    warnings.warn(f"{message}; left out", stacklevel=4)


class _Checker:
    """Decodes files, and keeps the pixels until the memory budget is used up.

    Threads decode at the same time, but never more than `MOST_PIXELS` pixels in all: a thread waits for its share.
    """

    def __init__(self, headers: Mapping[Location, Header], size: int, channels: int) -> None:
        self._headers, self._size, self._channels = headers, size, channels
        self._kept, self._decoding = 0, 0
        self._change = Condition()

    def __call__(self, file: Location) -> Checked:
        pixels = self._decode(file)
        with opened(file) as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        with self._change:
            self._kept += pixels.nbytes
            return Checked(digest, pixels if self._kept <= MEMORY_BUDGET else None)

    def _decode(self, file: Location) -> Pixels:
        header = self._headers[file]
        pictures = max(header.channels, self._channels, 3) / 3  # that would take as much memory
        share = min(MOST_PIXELS, int(pictures * max(header.width * header.height, self._size**2)))
        with self._change:
            self._change.wait_for(lambda: self._decoding + share <= MOST_PIXELS)
            self._decoding += share
        try:
            return decode(file, self._size, self._channels)
        finally:
            with self._change:
                self._decoding -= share
                self._change.notify_all()


def _attempt(
    task: Callable[[Location], Answer], files: Sequence[Location], what: str
) -> tuple[dict[Location, Answer], dict[Location, Exception]]:
    """What `task` answers for each file and what it raises, with a progress bar if there are many."""
    answers: dict[Location, Answer] = {}
    errors: dict[Location, Exception] = {}
    with without_bomb_warnings(), ExitStack() as at_the_end:
        threads = ThreadPoolExecutor()
        # After Ctrl-C there may be files that nobody has begun to read, and nobody shall.
        at_the_end.callback(threads.shutdown, cancel_futures=True)
        futures = {file: threads.submit(task, file) for file in files}
        for file, future in progress_of(futures.items(), what, len(files)):
            try:
                answers[file] = future.result()
            except ImportError:
                raise
            except Exception as error:  # decoders raise all sorts of errors for corrupt files
                errors[file] = error
    return answers, errors
