"""What is measured: a case, families of cases, and the suites."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gevit._checks import check_choice
from gevit.models.presets import PRESETS

# The backends of each device, the fastest last.
BACKENDS = ("reference", "factored", "native")
GPU_BACKENDS = ("reference", "factored", "triton")
MODES = ("train", "infer")


@dataclass(frozen=True)
class Case:
    """One measurement: a model, what it is fed, and the backend that computes its attention.

    Attributes:
        model: a name of `gevit.list_models()`.
        preset: the architecture.
        neighborhood: odd side of the square a pixel attends to; None for the whole image.
        encoding: the positional encoding.
        size: side of the images.
        batch: images in a step.
        mode: `"train"` (forward with dropout, loss, backward, Adam) or `"infer"` (forward, no gradients).
        backend: `"reference"`, `"factored"`, `"native"` or `"triton"`.
    """

    model: str
    preset: str
    neighborhood: int | None
    encoding: str
    size: int
    batch: int
    mode: str
    backend: str

    @property
    def architecture(self) -> str:
        """What is built, for people."""
        side = "global" if self.neighborhood is None else f"{self.neighborhood}x{self.neighborhood}"
        return f"{self.model} {self.encoding} {side}"

    @property
    def work(self) -> str:
        """What it is fed, for people."""
        return f"{self.preset} {self.size}x{self.size}, batch {self.batch}"


def family(
    model: Iterable[str] = ("r4_sa",),
    preset: Iterable[str] = ("rotmnist",),
    neighborhood: Iterable[int | None] = (5,),
    encoding: Iterable[str] = ("ge",),
    size: Iterable[int | None] = (None,),
    batch: Iterable[int] = (8,),
    mode: Iterable[str] = MODES,
    backend: Iterable[str] = BACKENDS,
) -> Iterator[Case]:
    """Every combination of these values, backends innermost; a size of None is that of the preset."""
    combinations = itertools.product(model, preset, neighborhood, encoding, size, batch, mode, backend)
    for name, architecture, side, positions, pixels, images, what, how in combinations:
        natural = PRESETS[check_choice("preset", architecture, PRESETS)].image_size
        yield Case(name, architecture, side, positions, pixels or natural, images, what, how)


def quick_suite(backends: Sequence[str] = BACKENDS) -> list[Case]:
    """A minute or two: the three backends at R4, and the two encodings at R8."""
    return [
        *family(["r4_sa"], backend=backends),
        *family(["r8_sa"], encoding=["ge", "relative"], batch=[2], backend=backends[-1:]),
    ]


def full_suite(backends: Sequence[str] = BACKENDS) -> list[Case]:
    """Everything that the performance page shows."""
    orders = ["z2_sa", "r4_sa", "r8_sa", "r12_sa", "r16_sa"]
    fastest = backends[-1:]
    cases = [
        *family(["r4_sa"], backend=backends),
        *family(["r8_sa", "d4_sa"], batch=[2], backend=backends),
        # the memory of large problems
        *family(["r8_sa", "r16_sa"], mode=["train"], backend=fastest),
        *family(["r4_sa"], neighborhood=[23], mode=["train"], backend=fastest),
        *family(["r4_sa"], preset=["pcam"], batch=[16], backend=fastest),
        # sweeps over the order of the group and over the neighbourhood
        *family(orders, batch=[2], backend=backends),
        *family(orders, encoding=["relative"], batch=[2], backend=fastest),
        *family(["r4_sa"], neighborhood=[3, 5, 9, 15, 23], batch=[2], mode=["train"], backend=backends),
    ]
    return list(dict.fromkeys(cases))  # the parts overlap


SUITES = {"quick": quick_suite, "full": full_suite}
