"""Builds the wheel for aarch64 on another machine, and tries its kernel in an emulator if there is one.

Needs Debian's `g++-aarch64-linux-gnu`, and `qemu-user-static` to run what was built:

    python3 release/cross_compile.py
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
KERNEL = ROOT / "src" / "gevit" / "attention" / "kernel"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
AARCH64 = 183  # e_machine in the header of an ELF file
TOLERANCE = {"float": 1e-4, "double": 1e-11}


def main() -> None:
    if not shutil.which(COMPILER):
        sys.exit(f"there is no {COMPILER}; apt-get install g++-aarch64-linux-gnu")
    with tempfile.TemporaryDirectory(prefix="gevit-aarch64-") as name:
        folder = Path(name)
        check_wheel(build_wheel(folder))
        if not shutil.which(EMULATOR):
            print(f"not run: there is no {EMULATOR}; apt-get install qemu-user-static")
            return
        for real, tolerance in TOLERANCE.items():
            here, there = kernel_answers(folder, "g++", real), kernel_answers(folder, COMPILER, real)
            error = max(abs(a - b) for a, b in zip(here, there, strict=True)) / max(map(abs, here))
            print(f"{real}: {len(here):,} numbers, aarch64 differs from this machine by {error:.1e} of the largest")
            if not error < tolerance:
                sys.exit(f"expected less than {tolerance:g}")


def build_wheel(folder: Path) -> Path:
    """The wheel for aarch64: setuptools takes the platform and the compiler from the environment."""
    compilers = {
        "CC": COMPILER,
        "CXX": COMPILER,
        "LDSHARED": f"{COMPILER} -shared",
        "LDCXXSHARED": f"{COMPILER} -shared",
    }
    environ = os.environ | compilers | {"_PYTHON_HOST_PLATFORM": "linux-aarch64", "CFLAGS": "-fPIC"}
    copy = folder / "source"  # so that objects of other builds are not taken for those of this one
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "dist", "*.so", "runs", "results")
    shutil.copytree(ROOT, copy, ignore=ignored)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "--wheel-dir", folder, copy], env=environ, check=True
    )
    [wheel] = folder.glob("*.whl")
    return wheel


def check_wheel(wheel: Path) -> None:
    """All libraries in it must be there, and for aarch64."""
    with zipfile.ZipFile(wheel) as archive:
        libraries = sorted(name for name in archive.namelist() if "_kernel_" in name)
        for name in libraries:
            [machine] = struct.unpack_from("<H", archive.read(name), 18)
            if machine != AARCH64:
                sys.exit(f"{name} is for machine {machine}, expected {AARCH64}")
    if len(libraries) != len(TOLERANCE) or not wheel.name.endswith("linux_aarch64.whl"):
        sys.exit(f"{wheel.name} has the libraries {libraries}, expected one for each precision")
    print(f"{wheel.name}: {', '.join(libraries)}")


def kernel_answers(folder: Path, compiler: str, real: str) -> list[float]:
    """What the kernel makes of the numbers of `kernel_check.cpp`, compiled for this machine or for aarch64."""
    program = folder / f"{compiler}-{real}"
    sources = [ROOT / "release" / "kernel_check.cpp", KERNEL / "attend.cpp"]
    flags = ["-std=gnu++17", "-O2", "-fopenmp", "-static", "-Wno-psabi", f"-DGEVIT_REAL={real}", f"-I{KERNEL}"]
    answers_of([compiler, *flags, *sources, "-o", program])
    return [float(line) for line in answers_of([program] if compiler == "g++" else [EMULATOR, program]).split()]


def answers_of(command: list[str | Path]) -> str:
    """What a program prints; what it complains of is only shown if it fails."""
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        sys.exit(f"{command[0]} failed: {found.stderr}")
    return found.stdout


if __name__ == "__main__":
    main()
