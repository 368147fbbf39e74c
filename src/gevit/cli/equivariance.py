"""`gevit equivariance`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gevit.files import write_aside

if TYPE_CHECKING:
    from torch import Tensor

    from gevit.models import EquivariantModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gevit equivariance`."""
    _add_model_arguments(parser)
    parser.add_argument("--images", type=int, default=4, metavar="N", help="how many digits")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32", help="precision")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw feature maps to this .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", nargs="+", default=["r4_sa"], metavar="NAME", help="one or more models, e.g. r4_sa d4_sa"
    )
    parser.add_argument("--preset", default="rotmnist", help="architecture: rotmnist, cifar10 or pcam")
    parser.add_argument("--encoding", default="ge", help="positional encoding: ge, gsa or relative")
    parser.add_argument("--neighborhood", type=_neighborhood, default=5, metavar="N", help="odd side, or 'global'")
    parser.add_argument("--pooling", default="max_mean", help="max_mean or sum_max")
    parser.add_argument("--backend", default="auto", help="auto, reference, factored or native")


def _neighborhood(text: str) -> int | None:
    if text == "global":
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected an odd integer or 'global', got {text!r}") from None


def run(args: argparse.Namespace) -> int:
    """Measure and print, and draw if asked."""
    import torch
    from rich.console import Console

    from gevit import create_model
    from gevit.data import load_digits, normalize_digits
    from gevit.evaluation import tables
    from gevit.evaluation.evaluate import equivariance_of, equivariance_rows
    from gevit.models.presets import PRESETS

    if args.images < 1:
        raise ValueError(f"--images must be at least 1, got {args.images}")
    dtype = getattr(torch, args.dtype)
    models = {}
    for name in args.model:
        torch.manual_seed(args.seed)
        models[name] = (
            create_model(
                name,
                args.preset,
                neighborhood=args.neighborhood,
                encoding=args.encoding,
                pooling=args.pooling,
                backend=args.backend,
            )
            .to(dtype)
            .eval()
        )
    preset = PRESETS[args.preset]
    digits, _ = load_digits()
    spread = torch.linspace(0, len(digits) - 1, args.images).long()
    images = normalize_digits(digits[spread]).to(dtype)
    images = torch.nn.functional.interpolate(images, (preset.image_size,) * 2, mode="nearest")
    images = images.expand(-1, preset.in_channels, -1, -1)

    console = Console(stderr=args.json)
    answers: list[dict[str, Any]] = []
    for name, model in models.items():
        with console.status(f"measuring {name}"):
            rows = equivariance_rows(*equivariance_of(model, images))
        answers.append(
            {
                "model": name,
                "group": str(model.group),
                "parameters": sum(p.numel() for p in model.parameters()),
                "dtype": args.dtype,
                "elements": rows,
            }
        )
        if not args.json:
            console.print(
                f"[bold]{name}[/], {args.preset}: {answers[-1]['parameters']:,} parameters, random weights, "
                f"{args.images} digits, {args.dtype}"
            )
            console.print(tables.equivariance(rows))
    if args.figure:
        _save_figure(models, images[0], args.figure)
        console.print(f"feature maps: {args.figure}", soft_wrap=True)
    if args.json:
        print(json.dumps(answers, indent=2))
    return 0


def _save_figure(models: dict[str, EquivariantModel], image: Tensor, path: Path) -> None:
    try:
        from gevit.equivariance.figures import feature_map_figure

        figure = feature_map_figure(models, image)
    except ImportError as error:
        raise ImportError(f"drawing needs matplotlib ({error}); pip install 'gevit[figures]'") from error
    with write_aside(path) as aside:
        figure.savefig(aside, dpi=150)
