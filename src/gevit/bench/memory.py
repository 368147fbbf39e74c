"""Memory of this process and of the machine, in bytes, and what the reference backend will need of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Copies of its large tensors (coefficients, gathered neighbours) that a layer of the reference holds at once.
COPIES = 3
FLOAT = 4
# Share of the available memory that a case may take.
LARGEST_SHARE = 0.8


def resident() -> int:
    """The memory this process holds now (where the system does not tell: the most it has held)."""
    return _read("/proc/self/status", "VmRSS") or peak()


def peak() -> int:
    """The most memory this process has held.

    `getrusage` is the second choice: on Linux a process inherits the peak of the one that started it.
    """
    if known := _read("/proc/self/status", "VmHWM"):
        return known
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def available() -> int:
    """The memory that a new process can have without swapping."""
    return _read("/proc/meminfo", "MemAvailable") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def reference_need(numbers: list[int], train: bool) -> int:
    """About what the reference needs, from how many numbers the large tensors of each attention layer have.

    Inference holds one layer at a time. Training keeps all of them, and the backward pass adds one more copy.
    """
    copies = COPIES * sum(numbers) + max(numbers) if train else COPIES * max(numbers)
    return FLOAT * copies


def refusal(need: int, free: int) -> str | None:
    """Why a case that needs so much should not be started, if it should not."""
    return f"needs about {need / 2**30:.0f} GB" if need > LARGEST_SHARE * free else None


def _read(path: str, field: str) -> int | None:
    """A field of a `/proc` file, which counts in KiB."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), None)
