"""`gevit app`: the lab in the browser."""

from __future__ import annotations

import argparse
from pathlib import Path

PORT = 8642


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gevit app`."""
    parser.description = (
        "Open the lab in the browser: turn images and watch what equivariant and plain models answer, look at their "
        "feature maps and attention, examine a model of yours. Nothing leaves this machine."
    )
    parser.add_argument("--port", type=int, default=PORT, metavar="N", help="where to listen; 0 for any free port")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; the default can be reached from this machine alone"
    )
    parser.add_argument(
        "--checkpoint", type=Path, metavar="PATH", help="your model: folder of a training run, or .safetensors file"
    )
    parser.add_argument("--data", metavar="PATH", help="your images: a folder for each class, or an archive of them")
    parser.add_argument("--no-browser", action="store_true", help="do not open the page")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    from gevit.environment import needs

    with needs("starlette and uvicorn", extra="app"):
        from gevit.app.server import make_app
        from gevit.app.serving import bind, serve
    from gevit.app.lab import Lab

    if not 0 <= args.port <= 65535:
        raise ValueError(f"--port must be from 0 to 65535, got {args.port}")
    with bind(args.host, args.port) as listening:
        serve(make_app(Lab(args.checkpoint, args.data), args.host), listening, not args.no_browser)
    return 0
