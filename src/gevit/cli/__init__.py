"""The command line: thin, every command is a module with `add_arguments` and `run` that calls the library."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from importlib import metadata

COMMANDS = {
    "train": ("gevit.cli.train", "train a model on a data set or a folder of images; resume a run"),
    "evaluate": ("gevit.cli.evaluate", "accuracy, per class and against rotation, of a trained model"),
    "predict": ("gevit.cli.predict", "classify image files with a trained model"),
    "data": ("gevit.cli.data", "list, get, verify and look at data sets"),
    "equivariance": ("gevit.cli.equivariance", "measure how exactly models are equivariant, and draw their maps"),
    "figures": ("gevit.cli.figures", "the paper's figures, on any weights and any image"),
    "reproduce": ("gevit.cli.reproduce", "the paper's tables run again, its numbers beside ours"),
    "bench": ("gevit.cli.bench", "time and peak memory of the attention backends, side by side"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `gevit` with these arguments; returns the exit code."""
    args = _parser().parse_args(argv)
    # Of several processes that train together, the first one speaks.
    speaks = os.environ.get("LOCAL_RANK", "0") == "0"
    try:
        return int(args.run(args))
    except (ValueError, TypeError, OSError, ImportError, MemoryError, ArithmeticError) as error:
        if speaks:
            print(f"gevit {args.command}: error: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        # Of the errors that torch raises from its depths, the one that a user can do something about.
        if not any(words in str(error) for words in ("out of memory", "allocate memory")):
            raise
        if speaks:
            print(
                f"gevit {args.command}: error: out of memory; use smaller batches or images: {error}", file=sys.stderr
            )
        return 2
    except KeyboardInterrupt as error:
        if speaks:
            print(f"gevit {args.command}: {str(error) or 'interrupted'}", file=sys.stderr)
        return 130


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Help that names a default where there is one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default is not None else action.help


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gevit",
        description="Vision transformers that are equivariant to translations, rotations and reflections.",
    )
    parser.add_argument("--version", action="version", version=f"gevit {metadata.version('gevit')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, (module, summary) in COMMANDS.items():
        command = importlib.import_module(module)
        parser_of_command = commands.add_parser(name, help=summary, description=summary, formatter_class=_Help)
        command.add_arguments(parser_of_command)
        parser_of_command.set_defaults(run=command.run)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
