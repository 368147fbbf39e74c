"""Builds the CPU kernel: one plain C++ source, compiled once for each instruction set and precision.

The libraries have no Python or torch headers in them (they are loaded with ctypes), so building needs a C++
compiler and nothing else, and one wheel serves every Python from 3.11 on (which `abi3` stands for). Which library is
used is decided at run time, from the processor. Where a build fails the package installs all the same, works in plain
PyTorch and says so; `pip install -v` shows the messages of the build.
"""

import copy
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNEL = Path("src/gevit/attention/kernel")
COMMON = [
    *("-std=gnu++17", "-O3", "-fopenmp", "-fvisibility=hidden", "-g0", "-Wno-psabi"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),  # nothing that changes NaN or infinity
]
TARGETS = {"baseline": []}
if sysconfig.get_platform().endswith(("x86_64", "amd64")):  # of the machine to build for, if that is another one
    TARGETS["avx2"] = ["-mavx2", "-mfma"]
    TARGETS["avx512"] = [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vl",
        "-mavx512dq",
        "-mfma",
        "-mprefer-vector-width=512",
    ]

PRECISIONS = {"": "float", "_double": "double"}


class BuildApart(build_ext):
    """Builds the libraries at the same time, each with a folder for its object file, since they have one source."""

    def finalize_options(self) -> None:
        """Use all cores, unless told otherwise."""
        super().finalize_options()
        self.parallel = self.parallel or True

    def build_extension(self, ext: Extension) -> None:
        """Build one library."""
        alone = copy.copy(self)
        alone.build_temp = str(Path(self.build_temp) / ext.name)
        super(BuildApart, alone).build_extension(ext)


setup(
    cmdclass={"build_ext": BuildApart},
    ext_modules=[
        Extension(
            f"gevit.attention._kernel_{target}{suffix}",
            sources=[str(KERNEL / "attend.cpp")],
            depends=[str(header) for header in KERNEL.glob("*.h")],
            define_macros=[("GEVIT_REAL", real)],
            extra_compile_args=[*COMMON, *flags],
            extra_link_args=["-fopenmp"],
            language="c++",
            optional=True,
            py_limited_api=True,
        )
        for target, flags in TARGETS.items()
        for suffix, real in PRECISIONS.items()
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
