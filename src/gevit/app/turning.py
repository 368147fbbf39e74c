"""An image turned, flipped and shifted, and what the models of a scene make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from gevit.app.scenes import Contender, Scene
from gevit.app.store import Recent
from gevit.data.rotation import rotate
from gevit.equivariance.measuring import compare
from gevit.models.base import EquivariantModel

ANGLES, PARTS = 72, 8  # of a full turn, and the requests in which it is asked for
REMEMBERED = 64

Image = Float[Tensor, "channels side side"]


@dataclass(frozen=True)
class Move:
    """What is done to an image: flipped left and right, then rotated, then shifted.

    Attributes:
        angle: in degrees, counter-clockwise.
        flip: whether it is flipped.
        right: pixels, to the right.
        down: pixels.
    """

    angle: float = 0.0
    flip: bool = False
    right: int = 0
    down: int = 0

    @property
    def exact(self) -> bool:
        """Whether pixels move to pixels."""
        return self.angle % 90 == 0

    def __call__(self, image: Image) -> Image:
        """The moved image; what comes from outside is its border."""
        image = rotate((image.flip(-1) if self.flip else image)[None], self.angle)
        reach = max(abs(self.right), abs(self.down))
        if reach:
            side, left, top = image.shape[-1], reach - self.right, reach - self.down
            image = F.pad(image, [reach] * 4, mode="replicate")[..., top : top + side, left : left + side]
        return image[0]


@dataclass(frozen=True)
class Response:
    """What a model gives for a batch: probabilities of the classes, and the invariant features before them."""

    probabilities: Float[Tensor, "n classes"]
    features: Float[Tensor, "n channels"]


def respond(model: EquivariantModel, images: Float[Tensor, "n channels side side"]) -> Response:
    """Ask a model; the features are what its last map before the classes pools to."""
    with torch.inference_mode():
        *_, (_, features), (_, classes) = model.iterate_features(images)
        logits, pooled = model.pooling(classes), model.pooling(features)
    if not logits.isfinite().all():
        raise ValueError("the model gives numbers that are not finite for this image")
    return Response(logits.softmax(1), pooled)


class Turning:
    """Answers of the models to moved images, beside those to the image itself, which are remembered."""

    def __init__(self) -> None:
        self._still: Recent[tuple[str, str], list[Response]] = Recent(REMEMBERED)

    def turn(self, scene: Scene, name: str, image: Image, move: Move) -> dict[str, Any]:
        """The moved image, and each model's answer to it.

        Args:
            scene: whose models.
            name: of the image.
            image: in [0, 1].
            move: what is done to it.
        """
        moved = move(image)
        answers = [
            _answer(contender, still, respond(contender.model, scene.info.normalize(moved[None])), move)
            for contender, still in zip(scene.contenders, self._still_of(scene, name, image), strict=True)
        ]
        return {"exact": move.exact, "pixels": moved, "answers": answers}

    def sweep(self, scene: Scene, name: str, image: Image, move: Move, part: int) -> dict[str, Any]:
        """Each model's answers to a move with other angles, some of the full turn: every `PARTS`-th, from `part` on."""
        angles = [360 * k / ANGLES for k in range(part, ANGLES, PARTS)]
        moved = scene.info.normalize(torch.stack([replace(move, angle=angle)(image) for angle in angles]))
        answers = []
        for contender, still in zip(scene.contenders, self._still_of(scene, name, image), strict=True):
            found = respond(contender.model, moved)
            errors = [compare(one[None], still.features, "").worst for one in found.features]
            answers.append({"probabilities": found.probabilities.tolist(), "errors": errors})
        return {"angles": angles, "answers": answers}

    def _still_of(self, scene: Scene, name: str, image: Image) -> Sequence[Response]:
        """The answers to the image as it is."""
        key = (scene.name, name)
        found = self._still.get(key)
        if found is None:
            images = scene.info.normalize(image[None])
            found = self._still[key] = [respond(contender.model, images) for contender in scene.contenders]
        return found


def _answer(contender: Contender, still: Response, found: Response, move: Move) -> dict[str, Any]:
    error = compare(found.features, still.features, "")
    in_group = contender.has_in_group(move.angle, move.flip)
    is_kept_exactly = move.exact and not (move.right or move.down)
    return {
        "probabilities": found.probabilities[0].tolist(),
        "still": still.probabilities[0].tolist(),
        "change": float((found.probabilities - still.probabilities).abs().max()),
        "error": error.worst,
        "in_group": in_group,
        "promised": in_group and is_kept_exactly and contender.is_equivariant,
    }
