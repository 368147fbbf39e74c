"""Checkpoints: one safetensors file each, with a digest, written aside and renamed; the last two are kept.

A file holds every tensor of the run's state under a path-like name and everything else as JSON in its header. Nothing
is pickled. A file that is cut short or has a changed byte fails its digest; the one before it is used instead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from gevit.files import write_aside

KEEP = 2
FORMAT = 2


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
    """Read a checkpoint and check every byte of it."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            # Copies: what is given is a view of the file, whose space would stay taken after its removal.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or not a checkpoint: {error}") from error
    if "facts" not in metadata or metadata.get("digest") != _digest(tensors, metadata["facts"]):
        raise ValueError(f"{path} is damaged: its contents do not match its digest")
    facts = json.loads(metadata["facts"])
    if facts.pop("format", None) != FORMAT:
        raise ValueError(f"{path} was written by another version of gevit (format {FORMAT} is read here)")
    return Checkpoint(tensors, facts)


def checkpoint_paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


def newest_good_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole (None if there is none), and what is wrong with the newer ones."""
    faults: list[str] = []
    for path in checkpoint_paths(folder):
        try:
            return load_checkpoint(path), faults
        except ValueError as error:
            faults.append(str(error))
    return None, faults


def _digest(tensors: Mapping[str, Tensor], facts: str) -> str:
    digest = hashlib.blake2b(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
