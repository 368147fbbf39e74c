"""What is measured: a case, the suites of cases, and families of cases made from flags."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gevit._checks import check_choice
from gevit.models.presets import PRESETS

BACKENDS = ("reference", "factored", "native")
MODES = ("train", "infer")


@dataclass(frozen=True)
class Case:
    """One measurement: a model, what it is fed, and the backend that computes its attention.

    Attributes:
        model: a name of `gevit.list_models()`.
        backend: `"reference"`, `"factored"` or `"native"`.
        mode: `"train"` (forward, loss, backward and Adam step, with dropout) or `"infer"` (forward, no gradients).
        preset: the architecture.
        size: side of the images.
        batch: images in a step.
        neighborhood: odd side of the square a pixel attends to; None for the whole image.
        encoding: the positional encoding.
    """

    model: str
    backend: str
    mode: str
    preset: str
    size: int
    batch: int
    neighborhood: int | None = 5
    encoding: str = "ge"

    @property
    def title(self) -> str:
        """Everything but the backend, for people."""
        side = "global" if self.neighborhood is None else f"{self.neighborhood}x{self.neighborhood}"
        return f"{self.model} {self.encoding} {side} {self.mode}, {self.preset} {self.size}x{self.size}, batch {self.batch}"


def family(
    models: Iterable[str],
    batches: Iterable[int],
    backends: Iterable[str] = BACKENDS,
    modes: Iterable[str] = MODES,
    presets: Iterable[str] = ("rotmnist",),
    neighborhoods: Iterable[int | None] = (5,),
    encodings: Iterable[str] = ("ge",),
    sizes: Iterable[int | None] = (None,),
) -> Iterator[Case]:
    """Every combination, the backends of one combination next to each other; a size of None is that of the preset."""
    others = itertools.product(models, presets, neighborhoods, encodings, sizes, batches, modes, backends)
    for model, preset, neighborhood, encoding, size, batch, mode, backend in others:
        side = size or PRESETS[check_choice("preset", preset, PRESETS)].image_size
        yield Case(model, backend, mode, preset, side, batch, neighborhood, encoding)


def quick_suite() -> list[Case]:
    """A minute or two: the three backends at R4, and the two encodings at R8."""
    return [
        *family(["r4_sa"], [8]),
        *family(["r8_sa"], [2], ["native"], encodings=["ge", "relative"]),
    ]


def full_suite() -> list[Case]:
    """Everything the performance page shows."""
    orders = ["z2_sa", "r4_sa", "r8_sa", "r12_sa", "r16_sa"]
    cases = [
        *family(["r4_sa"], [8]),
        *family(["r8_sa", "d4_sa"], [2]),
        # Memory of large problems.
        *family(["r8_sa", "r16_sa"], [8], ["native"], ["train"]),
        *family(["r4_sa"], [8], ["native"], ["train"], neighborhoods=[23]),
        *family(["r4_sa"], [16], ["native"], presets=["pcam"]),
        # Sweeps over the order of the group and over the neighbourhood.
        *family(orders, [2]),
        *family(orders, [2], ["native"], encodings=["relative"]),
        *family(["r4_sa"], [2], neighborhoods=[3, 5, 7, 9, 11, 15, 19, 23]),
    ]
    return list(dict.fromkeys(cases))  # the parts overlap


SUITES = {"quick": quick_suite, "full": full_suite}
