"""Flags that say which trained model a command uses."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gevit.models.base import EquivariantModel


def add_model_source(parser: argparse.ArgumentParser) -> None:
    """Add `--checkpoint PATH`, and `--model NAME --pretrained` with its `--preset`."""
    source = parser.add_argument_group("which model: --checkpoint PATH, or --model NAME --pretrained")
    source.add_argument(
        "--checkpoint", type=Path, metavar="PATH", help="folder of a training run, or a saved .safetensors file"
    )
    source.add_argument("--model", metavar="NAME", help="model by name, such as r4_sa")
    source.add_argument("--pretrained", action="store_true", help="the weights that come with the package")
    source.add_argument("--preset", default="rotmnist", help="architecture of the pretrained model")
    source.add_argument("--backend", default="auto", help="auto, reference, factored or native")


def load_from(args: argparse.Namespace) -> EquivariantModel:
    """The model that these flags name, in evaluation mode, with its `info`."""
    from gevit.models.base import info_of
    from gevit.persistence import load
    from gevit.pretrained import pretrained_path

    if args.checkpoint and args.pretrained:
        raise ValueError("--checkpoint and --pretrained both name weights: leave one of them out")
    if args.checkpoint:
        model = load(args.checkpoint, args.backend)
        if args.model and args.model != info_of(model).name:
            raise ValueError(f"{args.checkpoint} holds a {info_of(model).name}, not a {args.model}: leave out --model")
        return model
    if not (args.model and args.pretrained):
        raise ValueError("which model? give --checkpoint PATH, or --model NAME --pretrained")
    return load(pretrained_path(args.model, args.preset), args.backend)
