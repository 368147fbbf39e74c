"""Flags that several commands take: which model they use, what it is fed, counts and neighbourhoods, files to write."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gevit.environment import needs
from gevit.files import no_file_at

if TYPE_CHECKING:
    from torch import Tensor

    from gevit.models.base import EquivariantModel
    from gevit.orbit import Orbit

PICTURES = (".png", ".svg", ".pdf")
DEFAULT_PRESET = "rotmnist"
LARGEST = 2**63 - 1  # integer of torch
ARCHITECTURE = ("encoding", "neighborhood", "pooling")


def add_model_source(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Add `--checkpoint PATH`, and `--model NAME --pretrained [DATA]` with its `--preset`."""
    source = parser.add_argument_group("which model: --checkpoint PATH, or --model NAME --pretrained [DATA]")
    source.add_argument(
        "--checkpoint", type=Path, metavar="PATH", help="folder of a training run, or a saved .safetensors file"
    )
    if several:
        source.add_argument("--model", nargs="+", metavar="NAME", help="one or more models by name, e.g. r4_sa d4_sa")
    else:
        source.add_argument("--model", metavar="NAME", help="model by name, such as r4_sa")
    source.add_argument(
        "--pretrained",
        nargs="?",
        const=True,
        metavar="DATA",
        help="the weights that come with the package, by the data they were trained on (see `gevit pretrained`)",
    )
    source.add_argument("--preset", help="architecture: rotmnist (the default), cifar10, pcam, nano, tiny or small")
    source.add_argument("--backend", default="auto", help="auto, reference, factored, native or triton")


def add_orbit(parser: argparse.ArgumentParser) -> None:
    """Add `--orbit GROUP`."""
    parser.add_argument(
        "--orbit",
        metavar="GROUP",
        help="make the model invariant: average its logits over the image as each element of a group transforms it; "
        "c4 (quarter turns), d4 (and flips), c8, ...",
    )


def add_random_weights(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a model with random weights, which is what `--model NAME` alone then means."""
    random = parser.add_argument_group("random weights: --model NAME alone", argument_default=argparse.SUPPRESS)
    random.add_argument("--encoding", metavar="NAME", help="ge (the default), gsa or relative")
    random.add_argument("--neighborhood", type=neighborhood, metavar="N", help="odd side (default: 5), or 'global'")
    random.add_argument("--pooling", metavar="NAME", help="max_mean (the default) or sum_max")
    random.add_argument("--seed", type=seed, default=0, help="of the random weights")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32", help="precision")


def load_from(args: argparse.Namespace) -> EquivariantModel:
    """The trained model that these flags name, in evaluation mode, with its `info`."""
    from gevit.models.base import info_of
    from gevit.persistence import load
    from gevit.pretrained import pretrained_path

    if args.checkpoint and args.pretrained:
        raise ValueError("--checkpoint and --pretrained both name weights: leave one of them out")
    if args.checkpoint:
        model = load(args.checkpoint, args.backend)
        info = info_of(model)
        if args.model and args.model != info.name:
            raise ValueError(f"{args.checkpoint} holds a {info.name}, not a {args.model}: leave out --model")
        if args.preset and args.preset != info.preset:
            raise ValueError(
                f"{args.checkpoint} has the architecture {info.preset}, not {args.preset}: leave out --preset"
            )
        return model
    if not (args.model and args.pretrained):
        raise ValueError("which model? give --checkpoint PATH, or --model NAME --pretrained")
    return load(pretrained_path(args.model, args.preset or DEFAULT_PRESET, args.pretrained), args.backend)


def load_classifier(args: argparse.Namespace) -> EquivariantModel | Orbit:
    """The trained model that the flags name, within the `--orbit` that they ask for."""
    from gevit.groups import named_group
    from gevit.orbit import Orbit

    group = named_group(args.orbit) if args.orbit else None
    model = load_from(args)
    if not model.preset.num_classes:
        raise ValueError("this model gives features and has no classes (num_classes=0): name a classifier")
    return Orbit(model, group) if group else model


def check_weights(args: argparse.Namespace) -> None:
    """Refuse flags of random weights beside trained ones."""
    for name in ARCHITECTURE:
        if (args.checkpoint or args.pretrained) and name in args:
            raise ValueError(f"--{name} is for random weights; trained ones have their own: leave it out")


def trained_or_random(args: argparse.Namespace, name: str | None) -> EquivariantModel:
    """The model that the flags name, in evaluation mode: trained, or else with random weights.

    Args:
        args: the flags of `add_model_source` and `add_random_weights`.
        name: the model; may be None with `--checkpoint`, which knows it.
    """
    import torch

    from gevit.data.digits import MEAN, STD
    from gevit.pretrained import create_model

    check_weights(args)
    dtype = getattr(torch, args.dtype)
    if args.checkpoint or args.pretrained:
        return load_from(argparse.Namespace(**vars(args) | {"model": name})).to(dtype)
    options = {key: getattr(args, key) for key in ARCHITECTURE if key in args}
    torch.manual_seed(args.seed)
    assert name is not None
    model: EquivariantModel = create_model(name, args.preset or DEFAULT_PRESET, backend=args.backend, **options)
    channels = model.preset.in_channels
    model.info = dataclasses.replace(model.describe(), mean=(MEAN,) * channels, std=(STD,) * channels)
    return model.to(dtype).eval()


def fitted(model: EquivariantModel, pixels: Tensor) -> Tensor:
    """Images in [0, 1], `[n, channels, height, width]`, in the size and with the channels that the model takes."""
    import torch.nn.functional as F

    from gevit.models.base import info_of

    info = info_of(model)
    size = (info.image_size, info.image_size)
    return F.interpolate(pixels, size, mode="bilinear").expand(-1, info.in_channels, -1, -1)


def as_input(model: EquivariantModel, pixels: Tensor) -> Tensor:
    """Images in [0, 1], `[n, channels, height, width]`, as the model takes them: size, channels, precision, scale."""
    from gevit.models.base import info_of

    return info_of(model).normalize(fitted(model, pixels).to(next(model.parameters()).dtype))


def check_file(flag: str, path: Path) -> None:
    """Find out before anything is computed whether there can be this file after it; nothing is made yet."""
    target = Path(os.path.realpath(path))  # where a link leads to
    there = next(folder for folder in (*target.parents, target) if os.path.exists(folder))  # `/` has no parents
    if obstacle := no_file_at(path):
        reason = f"it is {obstacle}"
    elif not there.is_dir():
        reason = f"there can be no folder {path.parent}, as {there} is none"
    elif not os.access(there, os.W_OK | os.X_OK):
        reason = f"no permission to write in {there}"
    else:
        return
    raise ValueError(f"{flag} {path} cannot be written: {reason}; name another file")


def check_picture(flag: str, path: Path) -> None:
    """Find out before anything is computed what would stop its picture."""
    if path.suffix not in PICTURES:
        raise ValueError(f"{flag} draws {', '.join(PICTURES)}, got {path.name!r}")
    check_file(flag, path)
    with needs("matplotlib", extra="figures"):
        import matplotlib  # noqa: F401


def positive_integer(text: str) -> int:
    """A count of something."""
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    if int(text) > LARGEST:
        raise argparse.ArgumentTypeError(f"expected at most {LARGEST}, got {text}")
    return int(text)


def seed(text: str) -> int:
    """What random numbers start from."""
    value = int(text)
    if abs(value) > LARGEST:
        raise argparse.ArgumentTypeError(f"expected a number from {-LARGEST} to {LARGEST}, got {text}")
    return value


def neighborhood(text: str) -> int | None:
    """The odd side of a neighbourhood; None for the whole image."""
    try:
        return None if text == "global" else positive_integer(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"expected an odd integer or 'global', got {text!r}") from None
