"""`gevit train`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
import types
import typing
from pathlib import Path
from typing import Any

from gevit.training.config import TrainConfig, read_yaml
from gevit.training.folder import CONFIG, resumed_config

GROUPS = {
    "run": ("model", "data", "data_root", "out"),
    "network": ("preset", "encoding", "neighborhood", "pooling", "backend", "dropout", "start_from"),
    "images": (
        *("image_size", "skip_corrupt", "limit_train", "limit_valid", "limit_test"),
        *("rotate", "flip", "workers"),
    ),
    "optimization": (
        *("epochs", "batch_size", "accumulate", "optimizer", "lr", "schedule", "warmup_epochs", "cooldown_epochs"),
        *("weight_decay", "momentum", "label_smoothing", "clip_norm", "ema"),
    ),
    "machine": ("seed", "precision", "accelerator", "devices", "nodes", "checkpoint_seconds", "wandb"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A flag for each setting of `TrainConfig`; those not given stay out of the namespace."""
    parser.description = "Train a model, keep the epoch that is best on validation, test it, write a report."
    parser.epilog = (
        "examples:  gevit train --model r4_sa --data digits --epochs 3  |  gevit train --data photos/ --model d4_sa  "
        "|  gevit train --config configs/rotmnist_rebuilt_r4.yaml  |  gevit train --out runs/r4_sa-digits --resume"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings from a YAML file; flags go before it")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, where it was")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    fields = {entry.name: entry for entry in dataclasses.fields(TrainConfig)}
    kinds = typing.get_type_hints(TrainConfig)
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names:
            _add_flag(group, fields[name], kinds[name])


def _add_flag(group: Any, entry: dataclasses.Field[Any], kind: Any) -> None:
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    wanted = next(option for option in options if option is not type(None))
    text = entry.metadata["help"] + ("" if entry.default is None else f" (default: {entry.default})")
    flag = "--" + entry.name.replace("_", "-")
    common: dict[str, Any] = {"dest": entry.name, "default": argparse.SUPPRESS}
    if wanted is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, help=entry.metadata["help"], **common)
    else:
        choices, metavar = entry.metadata["choices"], wanted.__name__.upper()
        # Values are checked by TrainConfig, the same for flags and files.
        group.add_argument(flag, metavar="|".join(choices) if choices else metavar, help=text, **common)


def run(args: argparse.Namespace) -> int:
    """Train, and say where the outcome is."""
    given = {name: value for name, value in vars(args).items() if name in TrainConfig.__dataclass_fields__}
    settings = {**(read_yaml(args.config) if args.config else {}), **given}
    # Only the merged settings need make sense.
    folder = TrainConfig(**{name: settings[name] for name in ("out", "model", "data") if name in settings}).folder
    resumes = args.resume and (folder / CONFIG).exists()
    config = resumed_config(folder, settings) if resumes else TrainConfig(**settings)

    from gevit.training.loop import train

    outcome = train(config, args.resume, shlex.join(["gevit", *sys.argv[1:]]))
    if not outcome:  # a process that helped
        return 0
    if args.json:
        print(json.dumps(outcome, indent=2))
    else:
        print(
            f"test accuracy {outcome['test_accuracy']:.2%} (epoch {outcome['best_epoch']}, best on validation with "
            f"{outcome['valid_accuracy']:.2%})\nequivariance error {outcome['equivariance']['logits']:.1e} (logits, "
            f"quarter turns and flips in {outcome['equivariance']['group']})\nmodel   {outcome['model']}\n"
            f"report  {outcome['report']}"
        )
    return 0
