"""Invariance by averaging: any classifier of images, made invariant from outside.

The orbit of an image is all that a group H makes of it, { h^-1 x : h in H }. Transforming the image by an element of H
only permutes its orbit, so whatever is computed from the whole orbit is invariant, however the classifier was made. It
costs |H| passes; a network with the symmetry built in costs one.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gevit._checks import check_choice, check_group
from gevit.groups import Group

# The mean of the logits is the invariant function nearest to the classifier. The mean of the probabilities is the vote
# of |H| classifiers. The maximum is what an equivariant network pools over its group by.
REDUCTIONS = {
    "mean": lambda logits: logits.mean(0),
    "probability": lambda logits: logits.log_softmax(-1).logsumexp(0) - math.log(len(logits)),
    "max": lambda logits: logits.amax(0),
}


class Orbit(nn.Module):
    """Averages a classifier over a group: out(x) = mean over h in H of model(h^-1 x), which no element of H changes.

    Quarter turns and flips move pixels exactly, for images of any size, and invariance to them is exact up to rounding,
    also within a finer group such as `Cyclic(8)`. They swap height and width of an image that is not square, so the
    model must take both. Other elements interpolate bilinearly, with zeros from outside (the mean colour of normalised
    images): invariance to them is approximate.

    The elements are run one after the other: without gradients this takes the memory of one. In training, a model with
    batch norm sees each of them as a batch.

    Args:
        model: any module from images `[batch, channels, height, width]` to logits `[batch, classes]`.
        group: the group, such as `gevit.groups.Dihedral(4)`.
        reduce: `"mean"` of the logits; `"probability"`, the mean of the probabilities, returned as its logarithm; or
            `"max"` of the logits, class by class.

    >>> from gevit.groups import Dihedral
    >>> model = Orbit(nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten()), Dihedral(4))
    >>> x = torch.randn(2, 3, 32, 48)
    >>> torch.allclose(model(x), model(x.rot90(1, (2, 3))), atol=1e-6)
    True
    """

    def __init__(self, model: nn.Module, group: Group, reduce: str = "mean") -> None:
        super().__init__()
        self.model = model
        self.training = model.training  # a model in evaluation mode stays so
        self.group = check_group(group)
        self.reduce = check_choice("reduce", reduce, REDUCTIONS)
        self._factors = _factors(group)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        """Run the model on the orbit of each image, and reduce."""
        answers = []
        for exact, rest in self._factors:
            answer = self.model(self.group.act_on_image(self.group.act_on_image(x, exact), rest))
            if not isinstance(answer, Tensor) or answer.ndim != 2:
                found = tuple(answer.shape) if isinstance(answer, Tensor) else f"a {type(answer).__name__}"
                raise ValueError(f"an Orbit averages logits [batch, classes]; the model returns {found}")
            answers.append(answer)
        out: Tensor = REDUCTIONS[self.reduce](torch.stack(answers))
        return out

    @property
    def info(self) -> object:
        """What is known of the trained model inside, a `ModelInfo`, or None."""
        return getattr(self.model, "info", None)

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"{self.group}, reduce={self.reduce!r}"


def _factors(group: Group) -> list[tuple[int, int]]:
    """Every element as two, a quarter turn or flip q that acts first, and the rest f: h = f q.

    What f interpolates is then the same for x and for its quarter turns and flips, to the bit, also where images are
    not square and interpolation keeps their shape.
    """
    exact = [h for h in range(group.order) if group.is_exact(h)]
    rests = group.product[:, exact].amin(1)  # one f for each coset h Q
    return [(int(group.product[group.inverse[f], h]), int(f)) for h, f in enumerate(rests)]
