"""The state of a run, and its checkpoints: one safetensors file each, with a digest; the last two are kept.

A file holds every tensor of the run's state under a path-like name and everything else as JSON in its header. Nothing
is pickled. A file that is cut short or has a changed byte fails its digest; the one before it is used instead. A file
that is whole and cannot be read here, for want of permission or because of its format, stops the run.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from gevit.data.dataset import is_other_data
from gevit.files import open_regular, write_aside
from gevit.training.log import Row

KEEP = 2
FORMAT = 2
ANOTHER_RUN = "start another run with another --out"


class DamagedError(ValueError):
    """A checkpoint that nobody can read."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run: its tensors by name, and facts that JSON can hold."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def save_checkpoint(folder: Path, step: int, checkpoint: Checkpoint) -> Path:
    """Write the checkpoint of a step, then remove all but it and the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    facts = json.dumps({"format": FORMAT, **checkpoint.facts})
    path = folder / f"step-{step:09d}.safetensors"
    with write_aside(path) as aside:
        aside.write_bytes(to_bytes(tensors, {"facts": facts, "digest": _digest(tensors, facts)}))
    # What is newer belongs to a time that the run was taken back from: it was damaged, and must not push out the good.
    kept = [path, *(other for other in checkpoint_paths(folder) if other.name < path.name)][:KEEP]
    for other in set(checkpoint_paths(folder)) - set(kept):
        other.unlink()
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and check every byte of it.

    Raises:
        DamagedError: nothing can be made of it.
        ValueError: another version of gevit wrote it, or it is no file.
        OSError: it cannot be opened.
    """
    try:
        open_regular(path).close()  # safetensors has no true word for why it cannot open a file
    except (ValueError, OSError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise type(error)(f"cannot read {path}: {reason}; make it readable, or {ANOTHER_RUN}") from error
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            # Copies: what is given is a view of the file, whose space would stay taken after its removal.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise DamagedError(f"{path} is damaged or not a checkpoint: {error}") from error
    if "facts" not in metadata or metadata.get("digest") != _digest(tensors, metadata["facts"]):
        raise DamagedError(f"{path} is damaged: its contents do not match its digest")
    facts = json.loads(metadata["facts"])
    if facts.pop("format", None) != FORMAT:
        raise ValueError(
            f"{path} was written by another version of gevit (format {FORMAT} is read here); resume with that version, "
            f"or {ANOTHER_RUN}"
        )
    return Checkpoint(tensors, facts)


def checkpoint_paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


def newest_good_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole (None if there is none), and what is wrong with the newer ones.

    One that is not damaged and cannot be read all the same raises, as `load_checkpoint` does: the run is not lost yet.
    """
    faults: list[str] = []
    for path in checkpoint_paths(folder):
        try:
            return load_checkpoint(path), faults
        except DamagedError as error:
            faults.append(str(error))
    return None, faults


def _digest(tensors: Mapping[str, Tensor], facts: str) -> str:
    digest = hashlib.blake2b(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@dataclass
class Progress:
    """How far the run is, and how it went: everything but tensors."""

    command: str = ""  # that started the run
    run_id: str = ""  # for Weights & Biases, which takes runs of the same id for one
    environments: list[dict[str, str]] = field(default_factory=list)  # of its processes, each once
    step: int = 0
    seconds: float = 0.0  # of training and validation
    spent: float = 0.0  # seconds of all that the run's processes did
    evaluation_seconds: float = 0.0  # that an image took in the last validation
    history: list[Row] = field(default_factory=list)
    best: Row | None = None
    # Sums over the steps of the epoch that is under way.
    epoch_loss: float = 0.0
    epoch_correct: float = 0.0
    epoch_seconds: float = 0.0


class RunState:
    """Weights, their moving average, the optimizer's moments, the best weights so far, the scale of a loss that is
    differentiated in float16, and the progress.

    A state is of a run on certain data, whose digest it carries. The best weights are those with the best metric on
    validation, `select`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        ema_decay: float,
        data: str,
        select: str = "accuracy",
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self.data, self.select, self.scaler = data, select, scaler
        self.model = model
        self.optimizer = optimizer
        # Averages the statistics of batch norms too: those of the present weights are of other activations.
        averaging: Any = {"multi_avg_fn": _warm_average(ema_decay), "use_buffers": True}
        self.average = AveragedModel(model, **averaging) if ema_decay else None
        self.best_weights: dict[str, Tensor] = {}
        self.progress = Progress()

    @property
    def kept_model(self) -> nn.Module:
        """The model that is validated and kept: the moving average, if there is one."""
        return self.average.module if self.average is not None else self.model

    def keep_best(self, row: Row) -> bool:
        """Keep the weights if they are the best on validation so far; says whether they are."""
        best = self.progress.best
        if best is not None and _rank(row, self.select) <= _rank(best, self.select):
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
        scaler = self.scaler.state_dict() if self.scaler is not None else {}
        return Checkpoint(tensors, {"progress": vars(self.progress), "data": self.data, "scaler": scaler})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint; raises `ValueError` if it is of a run on other data, or of another model."""
        if is_other_data(checkpoint.facts["data"], self.data):
            raise ValueError("the images or labels are not those that the run started with")
        sections: dict[str, dict[str, Tensor]] = {}
        for path, tensor in checkpoint.tensors.items():
            section, name = path.split("/", 1)
            sections.setdefault(section, {})[name] = tensor
        try:
            self.model.load_state_dict(sections["model"])
        except RuntimeError as error:
            raise ValueError("the model is not the one that the run started with") from error
        self.best_weights = sections.get("best", {})
        if self.average is not None:
            self.average.load_state_dict(sections["average"])
        moments: dict[int, dict[str, Any]] = {}
        for path, tensor in sections.get("optimizer", {}).items():
            index, name = path.split("/")
            moments.setdefault(int(index), {})[name] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        if self.scaler is not None:
            self.scaler.load_state_dict(checkpoint.facts["scaler"])
        self.progress = Progress(**checkpoint.facts["progress"])


def _rank(row: Row, select: str) -> tuple[float, float]:
    """The larger the better; of equals the one of less loss, where it is a number."""
    minus_loss = -row["valid_loss"] if math.isfinite(row["valid_loss"]) else -math.inf
    return minus_loss if select == "loss" else row[f"valid_{select}"], minus_loss


def _warm_average(decay: float) -> Any:
    """Average over about the last 1 / (1 - decay) steps; over the last tenth of the steps while there are few."""

    @torch.no_grad()
    def update(average: list[Tensor], current: list[Tensor], steps: Tensor | int) -> None:
        if not average[0].is_floating_point():  # tensors come in groups of one type; counters and tables are copied
            torch._foreach_copy_(average, current)
            return
        weight = max(1 - decay, 9 / (10 + float(steps)))
        torch._foreach_lerp_(average, current, weight)

    return update
