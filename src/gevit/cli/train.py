"""`gevit train`."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from gevit.rendering.words import METRICS, epoch_number, metric_text
from gevit.training.config import SETTINGS, TrainConfig, kind_of, merged, read_yaml
from gevit.training.run_folder import CONFIG, resumed_config

# What settings look like that are no plain numbers.
METAVARS = {"max_time": "TIME", "neighborhood": "N|global"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A flag for each setting of `TrainConfig`; those not given stay out of the namespace."""
    parser.description = "Train a model, keep the epoch that is best on validation, test it, write a report."
    parser.epilog = (
        "examples:  gevit train --model r4_sa --data digits --epochs 3  |  gevit train --data photos/ --model d4_sa  "
        "|  gevit train --config configs/rotmnist_rebuilt_r4.yaml  |  gevit train --out runs/r4_sa-digits --resume"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings from a YAML file; flags override the file"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, where it was")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    titles = dict.fromkeys(entry.metadata["group"] for entry in SETTINGS.values())
    groups = {title: parser.add_argument_group(title) for title in titles}
    for name, entry in SETTINGS.items():
        _add_flag(groups[entry.metadata["group"]], name)


def _add_flag(group: Any, name: str) -> None:
    entry, wanted = SETTINGS[name], kind_of(name)
    help, choices = entry.metadata["help"], entry.metadata["choices"]
    flag = "--" + name.replace("_", "-")
    common: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS}
    if wanted is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, help=help, **common)
    else:
        # Values are checked by TrainConfig, the same for flags and files.
        metavar = METAVARS.get(name) or "|".join(choices) or wanted.__name__.upper()
        default = "" if entry.default is None else f" (default: {entry.default})"
        group.add_argument(flag, metavar=metavar, help=help + default, **common)


def run(args: argparse.Namespace) -> int:
    """Train, and say where the outcome is."""
    began = time.monotonic()  # before torch is loaded, which may take long
    config = _config(args)

    from gevit.training.loop import train

    outcome = train(config, args.resume, shlex.join(["gevit", *sys.argv[1:]]), began)
    if not outcome:  # a process that helped
        return 0
    if args.json:
        print(json.dumps(outcome, indent=2))
    else:
        select = outcome["select"]
        chosen = metric_text(select, outcome[f"valid_{select}"])
        print(
            f"test accuracy {outcome['test_accuracy']:.2%}, macro-F1 {outcome['test_macro_f1']:.2%} (epoch "
            f"{epoch_number(outcome['best_epoch'])}, best on validation with {METRICS[select]} {chosen})\n"
            f"equivariance error {outcome['equivariance']['logits']:.1e} (logits, quarter turns and flips in "
            f"{outcome['equivariance']['group']})\nmodel   {outcome['model']}\n"
            f"report  {outcome['report']}"
        )
    return 0


def _config(args: argparse.Namespace) -> TrainConfig:
    """The settings of the run: those of its folder or of a file, overridden by the flags."""
    given = {name: value for name, value in vars(args).items() if name in SETTINGS}
    settings, adapted = merged(read_yaml(args.config) if args.config else {}, given)
    # Only the merged settings need make sense.
    folder = TrainConfig(**{name: settings[name] for name in ("out", "model", "data") if name in settings}).folder
    # A process that helps on another machine has no run there: it gets its settings from the first one.
    helps = any(os.environ.get(name, "0") != "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK"))
    if not args.resume or (helps and not (folder / CONFIG).exists()):
        config = TrainConfig(**settings)
    else:
        config, adapted = resumed_config(folder, settings)
    if adapted and not helps:
        print(f"gevit train: {adapted}", file=sys.stderr)
    return config
