"""`gevit figures`: the paper's figures of equivariance, for any model and any image."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gevit.cli.arguments import (
    add_model_source,
    add_random_weights,
    as_input,
    check_picture,
    check_weights,
    trained_or_random,
)
from gevit.rendering.words import printable
from gevit.reproduce.studies import ENCODINGS

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from gevit.equivariance import RelativeError
    from gevit.models.base import EquivariantModel

FIGURES = {"translation": "r4_sa", "rotation": "r4_sa", "reflection": "d4_sa", "errors": "r4_sa"}  # and their models
FORMATS = ("png", "pdf", "svg")
PAPER_NAMES = {encoding: name for name, encoding in ENCODINGS.items()}
DIGIT = 2160  # of the embedded ones: an upright 4, which no rotation or reflection leaves as it is


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gevit figures`."""
    parser.description = (
        "Draw how feature maps follow an image that is shifted, rotated or reflected, and how far GE-ViT and GSA-Nets "
        "are from that, on trained weights or on random ones. The numbers are written beside each figure as JSON."
    )
    parser.add_argument("figure", nargs="?", choices=[*FIGURES, "all"], default="all", help="which one")
    add_model_source(parser)
    add_random_weights(parser)
    parser.add_argument(
        "--against", type=Path, metavar="PATH", help="trained GSA-Nets, for the errors of trained weights"
    )
    parser.add_argument("--image", type=Path, metavar="FILE", help="picture to show instead of a digit")
    parser.add_argument("--layer", metavar="NAME", help="whose feature maps; if not given, the first block's")
    parser.add_argument(
        "--channel",
        type=int,
        metavar="K",
        help="of the layer; if not given, the one that tells orientations apart best",
    )
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS), help="of the figures")
    parser.add_argument("--out", type=Path, default=Path("figures"), metavar="DIR", help="where to write")


def run(args: argparse.Namespace) -> int:
    """Draw and write the figures; returns the exit code.

    Of all figures, those for which a model has nothing to show are left out, which is said.
    """
    from gevit.equivariance.comparison import NothingToShow

    _check(args)
    for name in _chosen(args):
        try:
            figure, numbers = _errors(args) if name == "errors" else _following(args, name)
        except NothingToShow as reason:
            if args.figure != "all":
                raise
            print(f"{name} is left out: {reason}")
        else:
            _write(args, name, figure, numbers)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Find out before anything is computed what would stop it."""
    check_weights(args)
    if args.against and not (_is_trained(args) and args.figure in ("errors", "all")):
        raise ValueError("--against is for the errors of trained weights: give --checkpoint or --pretrained, too")
    for name in _chosen(args):
        check_picture("--out", args.out / f"{name}.{args.formats[0]}")


def _chosen(args: argparse.Namespace) -> list[str]:
    return list(FIGURES) if args.figure == "all" else [args.figure]


def _following(args: argparse.Namespace, kind: str) -> tuple[Figure, dict[str, Any]]:
    """How feature maps follow the image under one transformation."""
    from gevit.equivariance.comparison import NothingToShow, compare_elements, compare_translation
    from gevit.equivariance.figures import equivariance_figure

    model, facts = _model(args, FIGURES[kind])
    group, image = model.group, _image(args, model)
    if kind == "translation":
        comparison = compare_translation(model, image, args.layer)
    else:
        elements = range(1, group.rotations) if kind == "rotation" else range(group.rotations, group.order)
        element = next(filter(group.is_exact, elements), None)
        if element is None:
            raise NothingToShow(
                f"{group} has no {kind} that moves pixels to pixels; use a model such as {FIGURES[kind]}"
            )
        [comparison] = compare_elements(model, image, [element], args.layer)
    title = f"{kind.capitalize()} equivariance: {comparison.name}\n{facts['model']}, {_brief(args)}"
    figure = equivariance_figure(group, comparison, title, args.channel)
    return figure, facts | {"layer": comparison.layer, **_numbers(comparison.error)}


def _errors(args: argparse.Namespace) -> tuple[Figure, dict[str, Any]]:
    """The errors of a model and of GSA-Nets, element by element."""
    from gevit.equivariance.comparison import NothingToShow, compare_elements
    from gevit.equivariance.figures import error_figure
    from gevit.models import GroupTransformer

    model, facts = _model(args, FIGURES["errors"])
    if not isinstance(model, GroupTransformer):
        raise NothingToShow(f"errors compares positional encodings, and {facts['model']} has none")
    models = [(model, facts), _gsa_model(args)]
    group = model.group
    if models[1][0].group != group:
        raise ValueError(f"--against is a model of {models[1][0].group}, expected {group} like the other one")
    if not any(map(group.is_exact, range(1, group.order))):
        raise NothingToShow(f"{group} has no rotation or reflection that moves pixels to pixels; use r4_sa or d4_sa")
    comparisons, numbers = {}, {}
    for model, facts in models:
        name = PAPER_NAMES.get(facts["encoding"], facts["model"])
        if name in comparisons:
            raise NothingToShow(f"both models are {name}; errors compares GE-ViT, or 'relative', with GSA-Nets")
        comparisons[name] = compare_elements(model, _image(args, model), range(group.order), args.layer)
        elements = [{"element": e, **_numbers(c.error)} for e, c in enumerate(comparisons[name])]
        numbers[name] = facts | {"layer": comparisons[name][0].layer, "elements": elements}
    title = f"Error of feature maps: $|g^{{-1}}F(gx) - F(x)|$\n{models[0][1]['model']}, {_brief(args)}"
    return error_figure(group, comparisons, title, args.channel), numbers


def _model(args: argparse.Namespace, default: str) -> tuple[EquivariantModel, dict[str, Any]]:
    """The model that the flags name, and facts about it."""
    name = args.model if args.checkpoint else args.model or default
    return _known(args, trained_or_random(args, name))


def _gsa_model(args: argparse.Namespace) -> tuple[EquivariantModel, dict[str, Any]]:
    """The model to compare with: as random as the other one, or as trained."""
    import torch

    from gevit.equivariance.comparison import NothingToShow
    from gevit.persistence import load

    if args.against:
        return _known(args, load(args.against, args.backend).to(getattr(torch, args.dtype)))
    if _is_trained(args):
        raise NothingToShow("trained weights are compared with trained ones: give GSA-Nets with --against PATH")
    random = argparse.Namespace(**vars(args) | {"encoding": "gsa"})
    return _model(random, FIGURES["errors"])


def _known(args: argparse.Namespace, model: EquivariantModel) -> tuple[EquivariantModel, dict[str, Any]]:
    """A model, and facts about it."""
    from gevit.models.base import info_of

    info = info_of(model)
    facts = {
        "model": info.name,
        "encoding": info.encoding,
        "weights": f"trained, {info.data}" if _is_trained(args) else f"random, seed {args.seed}",
        "dtype": args.dtype,
    }
    return model, facts


def _is_trained(args: argparse.Namespace) -> bool:
    return bool(args.checkpoint or args.pretrained)


def _image(args: argparse.Namespace, model: EquivariantModel) -> Tensor:
    """The picture, or a digit, as the model takes it."""
    from gevit.data.decode import read_image
    from gevit.data.digits import load_digits
    from gevit.models.base import info_of

    if args.image:
        info = info_of(model)
        pixels = read_image(args.image, info.image_size, info.in_channels)
    else:
        pixels = load_digits()[0][DIGIT].float() / 255
    return as_input(model, pixels[None])[0]


def _numbers(error: RelativeError) -> dict[str, Any]:
    return {"name": error.name, "exact": error.exact, "mean": error.mean, "worst": error.worst}


def _brief(args: argparse.Namespace) -> str:
    return "trained weights" if _is_trained(args) else "random weights"


def _write(args: argparse.Namespace, name: str, figure: Figure, numbers: dict[str, Any]) -> None:
    from gevit.equivariance.figures import save
    from gevit.files import write_aside

    for suffix in args.formats:
        save(figure, args.out / f"{name}.{suffix}")
    with write_aside(args.out / f"{name}.json") as aside:
        aside.write_text(json.dumps(numbers, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{printable(args.out / name)}.{{{','.join([*args.formats, 'json'])}}}")
