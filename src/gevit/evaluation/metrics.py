"""How good logits are: accuracy and its interval, confusion, scores of each class and their means, ROC area, loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

# Of Student's t at 97.5%, by the degrees of freedom: 1 to 9.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class ClassScores:
    """Scores of one class; what has nothing to count is 0.

    Attributes:
        precision: the share of its predictions that are right.
        recall: the share of its images that are found.
        f1: the harmonic mean of the two.
        support: how many images it has.
    """

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class Evaluation:
    """What a model scores on a set of images.

    Attributes:
        n: number of images.
        loss: mean cross-entropy.
        accuracy: share that is right.
        confusion: `confusion[i][j]` images of class i were taken for class j.
        per_class: scores of each class.
        auc: area under the ROC curve of the second class, where there are two classes and images of both.
    """

    n: int
    loss: float
    accuracy: float
    confusion: tuple[tuple[int, ...], ...]
    per_class: tuple[ClassScores, ...]
    auc: float | None

    @property
    def balanced_accuracy(self) -> float:
        """The mean recall of the classes that have images: the accuracy if all had as many."""
        return fmean(scores.recall for scores in self.per_class if scores.support)

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes that have images."""
        return fmean(scores.f1 for scores in self.per_class if scores.support)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the accuracy."""
        return wilson_interval(self.accuracy, self.n)

    def to_json(self) -> dict[str, Any]:
        """The numbers as plain types."""
        return {
            **asdict(self),
            "accuracy_interval": list(self.interval),
            "balanced_accuracy": self.balanced_accuracy,
            "macro_f1": self.macro_f1,
        }


def score(logits: Float[Tensor, "n classes"], labels: Integer[Tensor, " n"]) -> Evaluation:
    """Compare logits with the right classes.

    >>> import torch
    >>> result = score(torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 1, 1]))
    >>> result.confusion, round(result.accuracy, 3), result.auc
    (((1, 0), (1, 1)), 0.667, 0.5)
    """
    confusion = confusion_matrix(logits.argmax(1), labels, logits.shape[1])
    loss = float(F.cross_entropy(logits.double(), labels))
    is_binary = logits.shape[1] == 2
    auc = area_under_roc(logits[:, 1].double() - logits[:, 0].double(), labels == 1) if is_binary else None
    return tally(confusion, loss, auc)


def tally(confusion: Int[Tensor, "classes classes"], loss: float, auc: float | None = None) -> Evaluation:
    """The evaluation of a confusion matrix, with the scores that it does not determine.

    >>> import torch
    >>> result = tally(torch.tensor([[8, 0], [1, 1]]), loss=0.5)
    >>> result.accuracy, result.balanced_accuracy, round(result.macro_f1, 3)
    (0.9, 0.75, 0.804)
    """
    found, n = confusion.diagonal(), int(confusion.sum())
    return Evaluation(
        n=n,
        loss=loss,
        accuracy=int(found.sum()) / n,
        confusion=tuple(tuple(row) for row in confusion.tolist()),
        per_class=tuple(map(_class_scores, found.tolist(), confusion.sum(0).tolist(), confusion.sum(1).tolist())),
        auc=auc,
    )


def confusion_matrix(
    predicted: Int[Tensor, " n"], labels: Integer[Tensor, " n"], num_classes: int
) -> Int[Tensor, "classes classes"]:
    """How often each class (row) was taken for each class (column)."""
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise ValueError(f"labels must be 0 to {num_classes - 1}, got {int(labels.min())} to {int(labels.max())}")
    pairs = labels.long() * num_classes + predicted  # small integers would wrap around
    return pairs.bincount(minlength=num_classes**2).view(num_classes, num_classes)


def area_under_roc(scores: Float[Tensor, " n"], positive: Bool[Tensor, " n"]) -> float | None:
    """The chance that a positive scores above a negative, ties counting half; None unless there are both."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return None
    _, place, ties = scores.unique(return_inverse=True, return_counts=True)
    rank = (ties.cumsum(0) - (ties - 1) / 2).double()[place]
    return float((rank[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share of n independent trials.

    >>> [round(end, 3) for end in wilson_interval(0.9, 100)]
    [0.826, 0.945]
    """
    z = 1.959964
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    return max(0.0, centre - reach), min(1.0, centre + reach)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's 95% interval of the mean of independent measurements; of one alone, everything is possible.

    >>> [round(end, 2) for end in mean_interval([1.0, 2.0, 3.0])]
    [-0.48, 4.48]
    """
    if len(values) < 2:
        return -math.inf, math.inf
    # With more than ten measurements the quantile of ten is on the safe side.
    quantile = T_QUANTILES[min(len(values), len(T_QUANTILES) + 1) - 2]
    reach = quantile * stdev(values) / math.sqrt(len(values))
    return fmean(values) - reach, fmean(values) + reach


def _class_scores(found: int, predicted: int, support: int) -> ClassScores:
    precision = found / predicted if predicted else 0.0
    recall = found / support if support else 0.0
    return ClassScores(precision, recall, 2 * found / (predicted + support) if found else 0.0, support)
