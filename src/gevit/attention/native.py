"""The CPU kernel behind the `native` backend: plain C++ libraries, loaded with ctypes.

There is one for each instruction set and precision.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gevit.attention.dropout import Dropout
from gevit.encoding import Positions

_FOLDER = Path(__file__).parent
# How the names of the libraries end for each dtype that the kernel serves.
_PRECISIONS = {torch.float32: "", torch.float64: "_double"}
# From the fastest instruction set a processor may have to what every one has.
_TARGETS = {"AVX512": ["avx512", "avx2", "baseline"], "AVX2": ["avx2", "baseline"]}


class _Shape(ctypes.Structure):
    """`gevit_shape` of the kernel."""

    _sizes = (
        "batch channels heads outputs queries keys height width neighborhood "
        "space_rows space_channels element_rows element_channels in_channels out_channels "
        "query_stride key_stride value_stride own threads first_image"
    )
    _fields_ = [
        *[(name, ctypes.c_int64) for name in _sizes.split()],
        ("seed", ctypes.c_uint64),
        ("scale", ctypes.c_double),
        ("dropout", ctypes.c_double),
    ]


def serves(tensor: Tensor) -> bool:
    """Whether the kernel is for tensors of this dtype and device."""
    return tensor.device.type == "cpu" and tensor.dtype in _PRECISIONS


def is_available(dtype: torch.dtype = torch.float32) -> bool:
    """Whether the kernel can be used; warns once when it cannot."""
    return isinstance(_library(dtype), ctypes.CDLL)


def reason(dtype: torch.dtype = torch.float32) -> str:
    """Why the kernel cannot be used."""
    library = _library(dtype)
    return library if isinstance(library, str) else ""


@functools.cache
def _library(dtype: torch.dtype) -> ctypes.CDLL | str:
    """The best library for this processor or, where there is none, why."""
    found = _find_library(dtype)
    if isinstance(found, str):
        warnings.warn(f"gevit runs without its CPU kernel, many times slower: {found}", stacklevel=2)
    return found


def _find_library(dtype: torch.dtype) -> ctypes.CDLL | str:
    for target in _TARGETS.get(torch.backends.cpu.get_cpu_capability(), ["baseline"]):
        for suffix in (".abi3.so", *importlib.machinery.EXTENSION_SUFFIXES):
            path = _FOLDER / f"_kernel_{target}{_PRECISIONS[dtype]}{suffix}"
            if path.exists():
                try:
                    return ctypes.CDLL(str(path))
                except OSError as error:
                    return f"{path} does not load: {error}"
    others = sorted(path.name for path in _FOLDER.glob("_kernel_*"))
    if others:
        return f"it was built for another Python or processor ({', '.join(others)}); reinstall gevit"
    return (
        "it was not built when gevit was installed, which takes a C++ compiler such as g++ with OpenMP; "
        "install gevit again with `pip install -v` to see the messages of the build"
    )


def forward(query: Tensor, key: Tensor, value: Tensor, positions: Positions, scale: float, dropout: Dropout) -> Tensor:
    """Group attention, without a graph."""
    batch, channels, heads, _, height, width = query.shape
    out = query.new_empty(batch, channels, heads, len(positions.offset_index), height, width)
    inputs = _inputs(query, key, value, positions)
    _call("gevit_attend_forward", [*inputs, out], _shape(inputs, positions, scale, dropout))
    return out


def backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Positions,
    scale: float,
    dropout: Dropout,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, space and element."""
    inputs = _inputs(query, key, value, positions)
    grads = [x.new_empty(x.shape) for x in inputs[:5]]
    shape = _shape(inputs, positions, scale, dropout)
    _call("gevit_attend_backward", [*inputs, grad.contiguous(), *grads], shape)
    return grads[0], grads[1], grads[2], grads[3], grads[4]


def forward_layer(
    signal: Tensor,
    maps: Sequence[Tensor],
    positions: Positions,
    heads: int,
    scale: float,
    dropout: Dropout,
    mixed: Tensor,
    out: Tensor,
) -> None:
    """A layer with these linear maps (`Projections`), into `out`, and what its attention gives, into `mixed`.

    The signal and both results are contiguous.
    """
    shape = _shape_of_layer(signal, maps, positions, heads, scale, dropout)
    _call("gevit_layer_forward", [signal, *_contiguous(maps), *_tables(positions), mixed, out], shape)


def backward_layer(
    grad: Tensor,
    mixed: Tensor,
    signal: Tensor,
    maps: Sequence[Tensor],
    positions: Positions,
    heads: int,
    scale: float,
    dropout: Dropout,
    d_signal: Tensor,
) -> list[Tensor]:
    """Gradients of weight, bias, out_weight, space and element; that of the signal is written to `d_signal`."""
    inputs = [signal, *_contiguous(maps), *_tables(positions), mixed, grad]
    grads = [x.new_empty(x.shape) for x in (*maps[:3], positions.space, positions.element)]
    shape = _shape_of_layer(signal, maps, positions, heads, scale, dropout)
    _call("gevit_layer_backward", [*inputs, d_signal, *grads], shape)
    return grads


def _inputs(query: Tensor, key: Tensor, value: Tensor, positions: Positions) -> list[Tensor]:
    signals = [x if x[:1].is_contiguous() else x.contiguous() for x in (query, key, value)]
    return [*signals, *_tables(positions)]


def _tables(positions: Positions) -> list[Tensor]:
    positions.check_indices()
    tables = (positions.space, positions.element, positions.offset_index.int(), positions.element_index.int())
    return _contiguous(tables)


def _contiguous(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [x.contiguous() for x in tensors]


def _shape(inputs: list[Tensor], positions: Positions, scale: float, dropout: Dropout) -> _Shape:
    query, key, value = inputs[:3]
    batch, channels, heads, queries, height, width = query.shape
    return _Shape(
        batch=batch,
        channels=channels,
        heads=heads,
        queries=queries,
        keys=key.shape[3],
        height=height,
        width=width,
        query_stride=query.stride(0),
        key_stride=key.stride(0),
        value_stride=value.stride(0),
        **_options(positions, scale, dropout),
    )


def _shape_of_layer(
    signal: Tensor, maps: Sequence[Tensor], positions: Positions, heads: int, scale: float, dropout: Dropout
) -> _Shape:
    batch, in_channels, elements, height, width = signal.shape
    out_channels, projected = maps[2].shape
    return _Shape(
        batch=batch,
        channels=projected // heads,
        heads=heads,
        queries=elements,
        keys=elements,
        height=height,
        width=width,
        in_channels=in_channels,
        out_channels=out_channels,
        **_options(positions, scale, dropout),
    )


def _options(positions: Positions, scale: float, dropout: Dropout) -> dict[str, Any]:
    outputs, offsets = positions.offset_index.shape
    return {
        "outputs": outputs,
        "neighborhood": math.isqrt(offsets),
        "space_rows": positions.space.shape[0],
        "space_channels": positions.space.shape[1],
        "element_rows": positions.element.shape[0],
        "element_channels": positions.element.shape[1],
        "own": positions.own_query,
        "threads": torch.get_num_threads(),
        "first_image": dropout.first_image,
        "seed": int(dropout.seed),
        "scale": scale,
        "dropout": dropout.rate,
    }


def _call(name: str, tensors: list[Tensor], shape: _Shape) -> None:
    library = _library(tensors[0].dtype)
    assert isinstance(library, ctypes.CDLL), library
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in tensors]
    match getattr(library, name)(*pointers, ctypes.byref(shape)):
        case 0:
            return
        case 1:
            raise MemoryError(f"{name} could not allocate its scratch memory; use a smaller image or neighborhood")
    sizes = ", ".join(f"{field} {getattr(shape, field)}" for field, *_ in _Shape._fields_)
    raise ValueError(f"the native backend does not serve these sizes; use backend='factored'. They are: {sizes}")
