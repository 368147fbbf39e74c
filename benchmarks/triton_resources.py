"""Compiles the kernels of the `triton` backend ahead of time, for GPUs that need not be here, and says what they take:
registers of a thread, bytes spilled from registers to memory, bytes of shared memory.

python benchmarks/triton_resources.py --out benchmarks/results/triton_resources.json

It ends with code 1 if a kernel spills, wants more shared memory than the GPU has, or has an atomic operation.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gevit.attention import triton_kernels
from gevit.attention.triton_backend import block_of, power_of_two, tile_of
from gevit.files import write_aside
from gevit.groups import Cyclic, Dihedral
from gevit.rendering.tables import Table, make_console

KERNELS = (
    "element_scores",
    "forward",
    "statistics",
    "query_gradient",
    "key_gradient",
    "space_gradient",
    "element_gradient",
    "sum_rows",
)
GROUPS = {"R4": Cyclic(4), "R8": Cyclic(8), "D4": Dihedral(4)}
NEIGHBORHOODS = (5, 9)
WIDTHS = (10, 32)
# Shared memory that one program may have, in bytes.
TARGETS = {
    "sm_80": (GPUTarget("cuda", 80, 32), 163 * 1024),
    "sm_90": (GPUTarget("cuda", 90, 32), 227 * 1024),
    "gfx942": (GPUTarget("hip", "gfx942", 64), 64 * 1024),
}
# What else makes another binary: the encoding, dropout and the dtype of the inputs.
VARIANTS = {
    "ge, dropout": ("ge", True, "fp32"),
    "ge": ("ge", False, "fp32"),
    "ge, dropout, bfloat16": ("ge", True, "bf16"),
    "relative, dropout": ("relative", True, "fp32"),
    "lifting, dropout": ("lifting", True, "fp32"),
}
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True)
class Resources:
    """What one kernel takes of a GPU.

    Attributes:
        registers: of a thread.
        spilled_bytes: of a thread's stack and local memory, where registers did not suffice.
        shared_bytes: shared memory of a program.
        atomics: atomic operations in its code, whose order would not repeat.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    atomics: int


@dataclass(frozen=True)
class Case:
    """A kernel, the problem it is compiled for and the GPU."""

    target: str
    group: str
    neighborhood: int
    width: int
    variant: str
    kernel: str

    @property
    def resources(self) -> Resources:
        """Those of the binary; the group and the neighbourhood are arguments, and most cases share theirs."""
        encoding, dropped, dtype = VARIANTS[self.variant]
        gpu, _ = TARGETS[self.target]
        order = GROUPS[self.group].order
        tile = tile_of(self.width, gpu.warp_size)
        own, lifting = encoding == "relative", encoding == "lifting"
        constants = {
            "CHANNELS": self.width,
            "HAS_ELEMENTS": not lifting,
            "OWN": own,
            "DROPPED": dropped,
            "OUTPUTS": 1 if own else block_of(tile.outputs, order),
            "KEYS": block_of(tile.keys, 1 if lifting else order),
            "C": power_of_two(self.width),
            "PLACES": tile.places,
        }
        return compile_kernel(self.kernel, self.target, dtype, tuple(constants.items()))


@functools.cache
def compile_kernel(name: str, target: str, dtype: str, constants: tuple[tuple[str, int], ...]) -> Resources:
    kernel = getattr(triton_kernels, name)
    known = {name: value for name, value in constants if name in kernel.arg_names}
    numbers = {
        **dict.fromkeys(("scale", "enlarged"), "fp32"),
        **dict.fromkeys(("tiles", "low", "high", "first_plane", "lowest"), "i32"),
        "sizes": triton_kernels.Sizes._make(["i32"] * len(triton_kernels.Sizes._fields)),
    }
    kinds = dict.fromkeys(("query", "key", "value", "grad", "out", "d_query", "d_key", "d_value"), f"*{dtype}")
    kinds |= dict.fromkeys(("element_index", "pair_noise", "offset_noise"), "*i32")
    kinds |= dict.fromkeys(("order", "starts"), "*i64")
    if name == "sum_rows":
        kinds["out"] = "*fp32"
    signature = {
        argument: "constexpr" if argument in known else numbers.get(argument, kinds.get(argument, "*fp32"))
        for argument in kernel.arg_names
    }
    # As at run time: torch aligns what it allocates.
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, kind in enumerate(signature.values())
        if isinstance(kind, str) and kind.startswith("*")
    }
    source = ASTSource(kernel, signature, known, aligned)
    gpu, _ = TARGETS[target]
    binary = triton.compile(source, target=gpu, options={"num_warps": 1, "enable_fp_fusion": True})
    cuda = gpu.backend == "cuda"
    registers, spilled, static = (_read_cubin if cuda else _read_assembly)(binary.asm)
    atomics = re.findall(r"\b(?:atom|red)\." if cuda else "_atomic", binary.asm["ptx" if cuda else "amdgcn"])
    return Resources(registers, spilled, max(static, binary.metadata.shared), len(atomics))


def _read_cubin(asm: dict[str, bytes]) -> tuple[int, int, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        command = [str(CUOBJDUMP), "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    fields = {name: int(number) for name, number in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", usage)}
    return fields["REG"], fields["STACK"] + fields["LOCAL"], fields["SHARED"]


def _read_assembly(asm: dict[str, str]) -> tuple[int, int, int]:
    def field(name: str) -> int:
        (number,) = re.findall(rf"\.{name}:\s+(\d+)", asm["amdgcn"])
        return int(number)

    spilled = field("private_segment_fixed_size") + 4 * (field("vgpr_spill_count") + field("sgpr_spill_count"))
    return field("vgpr_count"), spilled, field("group_segment_fixed_size")


def cases(
    targets: Iterable[str], widths: Iterable[int], variants: Iterable[str], kernels: Iterable[str]
) -> Iterator[Case]:
    for case in itertools.product(targets, GROUPS, NEIGHBORHOODS, widths, variants, kernels):
        yield Case(*case)


def fits(case: Case) -> bool:
    found = case.resources
    return not (found.spilled_bytes or found.atomics) and found.shared_bytes <= TARGETS[case.target][1]


def table(found: Iterable[Case]) -> Table:
    """The most that each kernel takes for any group and neighbourhood."""
    rows: dict[tuple[str, str, int], dict[str, list[Resources]]] = {}
    for case in found:
        row = rows.setdefault((case.variant, case.kernel, case.width), {})
        row.setdefault(case.target, []).append(case.resources)
    targets = list(dict.fromkeys(target for row in rows.values() for target in row))
    fields = ("registers", "spilled", "shared")
    cells = (itertools.chain(*(_most(row[target]) for target in targets)) for row in rows.values())
    return Table(
        ("variant", "kernel", "width", *fields * len(targets)),
        [[*map(str, name), *numbers] for name, numbers in zip(rows, cells, strict=True)],
        groups=("", "", "", *itertools.chain(*([target] * len(fields) for target in targets))),
        alignment="llr" + "rrr" * len(targets),
    )


def _most(found: Iterable[Resources]) -> list[str]:
    columns = zip(*((r.registers, r.spilled_bytes, r.shared_bytes) for r in found), strict=True)
    return [str(max(column)) for column in columns]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--width", nargs="+", type=int, default=list(WIDTHS), help="channels of a head")
    parser.add_argument("--kernel", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--out", type=Path, help="write all cases to this JSON file")
    args = parser.parse_args()
    found = list(cases(args.target, args.width, args.variant, args.kernel))
    records = [{**asdict(case), **asdict(case.resources)} for case in found]
    if args.out:
        with write_aside(args.out) as aside:
            aside.write_text(json.dumps({"triton": triton.__version__, "cases": records}, indent=1) + "\n")
    make_console().print(table(found).to_rich())
    bad = [case for case in found if not fits(case)]
    for case in bad:
        print(f"does not fit: {case} takes {case.resources}", file=sys.stderr)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
