"""`gevit equivariance`: how exactly models are equivariant."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gevit.cli.arguments import add_model_source, add_random_weights, as_input, positive_integer, trained_or_random

if TYPE_CHECKING:
    from torch import Tensor

    from gevit.models.base import EquivariantModel

DEFAULT = "r4_sa"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gevit equivariance`."""
    parser.description = (
        "Measure how exactly the logits of models are invariant, and their feature maps equivariant, on digits: "
        "with the weights of a checkpoint, pretrained or random ones."
    )
    add_model_source(parser, several=True)
    add_random_weights(parser)
    parser.add_argument("--images", type=positive_integer, default=4, metavar="N", help="how many digits")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw feature maps to this .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Measure and print, and draw if asked."""
    from gevit.data import load_digits
    from gevit.evaluation.evaluate import equivariance_of, equivariance_rows
    from gevit.evaluation.presentation import equivariance_table
    from gevit.rendering.tables import make_console
    from gevit.rendering.words import printable

    models = _models(args)
    digits, _ = load_digits()
    spread = [k * (len(digits) - 1) // max(1, args.images - 1) for k in range(args.images)]
    pixels = digits[spread].float() / 255

    console = make_console(stderr=args.json)
    answers: list[dict[str, Any]] = []
    for name, model in models.items():
        with console.status(f"measuring {name}"):
            rows = equivariance_rows(*equivariance_of(model, as_input(model, pixels)))
        weights = f"trained on {model.info.data}" if model.info else f"random, seed {args.seed}"
        answers.append(
            {
                "model": name,
                "weights": weights,
                "group": str(model.group),
                "parameters": sum(p.numel() for p in model.parameters()),
                "dtype": args.dtype,
                "elements": rows,
            }
        )
        if not args.json:
            title = f"{name}: {answers[-1]['parameters']:,} parameters, weights {weights}, {args.dtype}"
            console.print(equivariance_table(rows, f"relative equivariance error of {title}").to_rich())
    if args.figure:
        _save_figure(models, as_input(next(iter(models.values())), pixels)[0], args.figure)
        console.print(printable(f"feature maps: {args.figure}"), soft_wrap=True, markup=False)
    if args.json:
        print(json.dumps(answers, indent=2))
    return 0


def _models(args: argparse.Namespace) -> dict[str, EquivariantModel]:
    """The models that the flags name, by their names."""
    from gevit.models.base import info_of

    if args.checkpoint:
        if args.model and len(args.model) > 1:
            raise ValueError(f"--checkpoint holds one model, got {len(args.model)} names with --model: leave them out")
        model = trained_or_random(args, args.model and args.model[0])
        return {info_of(model).name: model}
    return {name: trained_or_random(args, name) for name in args.model or [DEFAULT]}


def _save_figure(models: dict[str, EquivariantModel], image: Tensor, path: Path) -> None:
    try:
        from gevit.equivariance.figures import feature_map_figure, save

        figure = feature_map_figure(models, image)
    except ImportError as error:
        raise ImportError(f"drawing needs matplotlib ({error}); pip install 'gevit[figures]'") from error
    save(figure, path)
