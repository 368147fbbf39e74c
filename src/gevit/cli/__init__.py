"""The command line: thin, every command is a module with `add_arguments` and `run` that calls the library."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import io
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import cast

from gevit._version import __version__
from gevit.rendering.words import printable

COMMANDS = {
    "train": ("gevit.cli.train", "train a model on a data set, or a folder or archive of images; resume a run"),
    "evaluate": ("gevit.cli.evaluate", "accuracy, per class and against rotation, of a trained model"),
    "predict": ("gevit.cli.predict", "classify image files with a trained model"),
    "data": ("gevit.cli.data", "list, get, verify and look at data sets"),
    "pretrained": ("gevit.cli.pretrained", "list the weights that come with the package"),
    "equivariance": ("gevit.cli.equivariance", "measure how exactly models are equivariant, and draw their maps"),
    "figures": ("gevit.cli.figures", "the paper's figures, on any weights and any image"),
    "export": ("gevit.cli.export", "write a model as ONNX or torch.export, for other runtimes"),
    "reproduce": ("gevit.cli.reproduce", "the paper's tables run again, its numbers beside ours"),
    "bench": ("gevit.cli.bench", "time and peak memory of the attention backends, side by side"),
    "app": ("gevit.cli.app", "the lab: turn images in the browser and see what models make of them"),
}


# What a user may cause and can do something about; it is said in one line.
EXPECTED = (ValueError, TypeError, OSError, ImportError, MemoryError, ArithmeticError)
OUT_OF_MEMORY = ("out of memory", "allocate memory")
BUG = (
    "this is a bug in gevit, not in what you did; please open an issue with the lines above, the command and "
    "the output of `gevit --version`"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `gevit` with these arguments; returns the exit code.

    It is 2 for an error, 1 for a bug, 130 for Ctrl-C, 141 for output that nobody reads any more.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    debug = "--debug" in words  # anywhere: before the command or after it
    # A name that the reader's encoding lacks is escaped. What replaces standard output may not be asked for that.
    with contextlib.suppress(AttributeError, OSError):
        cast(io.TextIOWrapper, sys.stdout).reconfigure(errors="backslashreplace")
    try:
        args = parse([word for word in words if word != "--debug"])
    except KeyboardInterrupt:
        print("gevit: interrupted", file=sys.stderr)
        return 130
    if args.command is None:
        _parser().print_help()
        return 2
    try:
        with _plain_warnings(args.command, debug):
            code = int(args.run(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # who reads our output has seen enough, as in `gevit data list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes when it ends
        return 141
    except (Exception, KeyboardInterrupt) as error:
        message, code, is_bug = _verdict(error)
        if os.environ.get("LOCAL_RANK", "0") == "0":  # of several processes that train together, the first one speaks
            if debug or is_bug:
                traceback.print_exception(error)
            print(printable(f"gevit {args.command}: {message}"), file=sys.stderr)
        return code


@contextlib.contextmanager
def _plain_warnings(command: str, debug: bool) -> Iterator[None]:
    """Show a warning as a line for the user, without the line of code that it is about, unless that is asked for."""
    formatted = warnings.formatwarning
    if not debug:
        warnings.formatwarning = lambda message, *_, **__: printable(f"gevit {command}: warning: {message}") + "\n"
    try:
        yield
    finally:
        warnings.formatwarning = formatted


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command and its flags; nothing is run.

    >>> parse(["bench", "--model", "r4_sa"]).command
    'bench'
    """
    args, unknown = _parser().parse_known_args(words)
    if unknown:
        parser: argparse.ArgumentParser = args.parser
        flags = re.findall(r"--[a-z][\w-]*", parser.format_help())
        near = difflib.get_close_matches(unknown[0].partition("=")[0], flags, n=1, cutoff=0.7)
        hint = f"did you mean {near[0]}?" if near else f"see `{parser.prog} --help`"
        parser.exit(2, f"{parser.prog}: error: unknown {printable(' '.join(unknown))}; {hint}\n")
    return args


def _verdict(error: BaseException) -> tuple[str, int, bool]:
    """What to say of an error, the exit code, and whether it is a bug."""
    if isinstance(error, KeyboardInterrupt):
        return str(error) or "interrupted", 130, False
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("gevit"):
        return f"error: {error.name} is not installed; pip install 'gevit[train]'", 2, False
    # Of the errors that torch raises from its depths, the one that a user can do something about.
    if isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY):
        return f"error: out of memory; use smaller batches or images: {error}", 2, False
    if isinstance(error, EXPECTED):
        return f"error: {error}", 2, False
    return BUG, 1, True


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Help that names a default where there is one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default is not None else action.help


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gevit",
        description="Vision transformers that are equivariant to translations, rotations and reflections.",
    )
    parser.set_defaults(parser=parser)
    parser.add_argument("--version", action="version", version=f"gevit {__version__}")
    parser.add_argument("--debug", action="store_true", help="show where an error comes from; may stand anywhere")
    commands = parser.add_subparsers(dest="command", metavar="command")
    for name, (module, summary) in COMMANDS.items():
        command = importlib.import_module(module)
        parser_of_command = commands.add_parser(name, help=summary, description=summary, formatter_class=_Help)
        command.add_arguments(parser_of_command)
        parser_of_command.set_defaults(run=command.run, parser=parser_of_command)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
