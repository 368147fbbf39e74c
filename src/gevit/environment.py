"""What gevit runs on: versions, machine and commit, and the optional packages that a part of it needs."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from gevit._version import __version__


def environment() -> dict[str, str]:
    """Facts that a result depends on, by name.

    >>> "torch" in environment()
    True
    """
    import torch

    facts = {
        "gevit": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": cpu_model(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "system": platform.platform(),
    }
    return {name: value for name, value in facts.items() if value}


def joined(environments: Sequence[dict[str, str]]) -> dict[str, str]:
    """The facts of several processes as those of one; where they differ, all that there were.

    >>> joined([{"torch": "2.13.0", "commit": "1a"}, {"torch": "2.13.0", "commit": "2b"}])
    {'torch': '2.13.0', 'commit': '1a, 2b'}
    """
    names = dict.fromkeys(name for facts in environments for name in facts)
    return {name: ", ".join(dict.fromkeys(facts[name] for facts in environments if name in facts)) for name in names}


def cpu_model() -> str:
    """The model of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@functools.cache
def _commit() -> str:
    """The commit of this package, and whether its files differ from it; empty unless it runs from a checkout.

    A process asks once: the checkout may move on while it runs the code of before.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # An environment inside the checkout of something else is not a checkout of this.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD") + (" with changes" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


@contextlib.contextmanager
def needs(package: str, extra: str = "train") -> Iterator[None]:
    """Say how to install an optional `package` if an import of it in the block fails.

    Args:
        package: as users know it.
        extra: the part of gevit's optional dependencies that brings it.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(f"this needs {package} ({error}); pip install 'gevit[{extra}]'") from error
