"""The state of a run: what a checkpoint holds and a resumed run goes on from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from gevit.data.dataset import is_other_data
from gevit.training.checkpoint import Checkpoint
from gevit.training.log import Row


@dataclass
class Progress:
    """How far the run is, and how it went: everything but tensors."""

    command: str = ""  # that started the run
    environments: list[dict[str, str]] = field(default_factory=list)  # of its processes, each once
    step: int = 0
    seconds: float = 0.0
    history: list[Row] = field(default_factory=list)
    best: Row | None = None
    # Sums over the steps of the epoch that is under way.
    epoch_loss: float = 0.0
    epoch_correct: float = 0.0
    epoch_seconds: float = 0.0


class RunState:
    """Weights, their moving average, the optimizer's moments, the best weights so far, and the progress.

    A state is of a run on certain data, whose digest it carries.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, ema_decay: float, data: str) -> None:
        self.data = data
        self.model = model
        self.optimizer = optimizer
        self.average = AveragedModel(model, multi_avg_fn=_warm_average(ema_decay)) if ema_decay else None
        self.best_weights: dict[str, Tensor] = {}
        self.progress = Progress()

    @property
    def kept_model(self) -> nn.Module:
        """The model that is validated and kept: the moving average, if there is one."""
        return self.average.module if self.average is not None else self.model

    def keep_best(self, row: Row) -> bool:
        """Keep the weights if they are the best on validation so far; says whether they are."""
        best = self.progress.best
        if best is not None and _rank(row) <= _rank(best):
            return False
        self.progress.best = dict(row)
        self.best_weights = {name: tensor.detach().clone() for name, tensor in self.kept_model.state_dict().items()}
        return True

    def checkpoint(self) -> Checkpoint:
        """Everything, under path-like names."""
        tensors = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"best/{name}": tensor for name, tensor in self.best_weights.items()}
        if self.average is not None:
            tensors |= {f"average/{name}": tensor for name, tensor in self.average.state_dict().items()}
        for index, moments in self.optimizer.state_dict()["state"].items():
            for name, tensor in moments.items():
                if tensor is not None:
                    tensors[f"optimizer/{index}/{name}"] = torch.as_tensor(tensor)
        return Checkpoint(tensors, {"progress": vars(self.progress), "data": self.data})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint; raises `ValueError` if it is of a run on other data, or of another model."""
        if is_other_data(checkpoint.facts["data"], self.data):
            raise ValueError("the data are not those that the run was begun with")
        sections: dict[str, dict[str, Tensor]] = {}
        for path, tensor in checkpoint.tensors.items():
            section, name = path.split("/", 1)
            sections.setdefault(section, {})[name] = tensor
        try:
            self.model.load_state_dict(sections["model"])
        except RuntimeError as error:
            raise ValueError("the model is not the one that the run was begun with") from error
        self.best_weights = sections.get("best", {})
        if self.average is not None:
            self.average.load_state_dict(sections["average"])
        moments: dict[int, dict[str, Any]] = {}
        for path, tensor in sections.get("optimizer", {}).items():
            index, name = path.split("/")
            moments.setdefault(int(index), {})[name] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        self.progress = Progress(**checkpoint.facts["progress"])


def _rank(row: Row) -> tuple[float, float]:
    loss = row["valid_loss"]
    return row["valid_accuracy"], -loss if math.isfinite(loss) else -math.inf


def _warm_average(decay: float) -> Any:
    """Average over about the last 1 / (1 - decay) steps; over the last tenth of the steps while there are few."""

    @torch.no_grad()
    def update(average: list[Tensor], current: list[Tensor], steps: Tensor | int) -> None:
        weight = max(1 - decay, 9 / (10 + float(steps)))
        torch._foreach_lerp_(average, current, weight)

    return update
