"""Models for other runtimes: ONNX, and programs of `torch.export`.

Both hold standard operators alone (attention as in `gevit.attention.graph`), take any number of images of one size,
`[batch, channels, height, width]`, normalised as the model wants them, and give logits. What it takes to use them goes
along: classes, mean, std and the rest of `ModelInfo`, as JSON in the file's metadata under `gevit`.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gevit._checks import check_choice, check_count
from gevit.encoding import PositionalEncoding, Positions
from gevit.environment import needs
from gevit.equivariance import measure
from gevit.files import write_aside
from gevit.groups import Cyclic, Dihedral, Group
from gevit.layers import GroupAttention, LiftingAttention
from gevit.models.base import EquivariantModel, in_evaluation_mode

FORMATS = ("onnx", "torch-export")
METADATA = "gevit"
# Two images show an exporter that the batch is an axis of any length: one of length 1 is taken for a constant.
EXAMPLES = 2

Images = Float[Tensor, "batch channels height width"]
Logits = Callable[[Images], Tensor]


def export(
    model: EquivariantModel, path: str | Path, format: str = "onnx", image_size: int | tuple[int, int] | None = None
) -> None:
    """Write a model to a file, whole or not at all.

    Args:
        model: from `gevit.create_model` or `gevit.load`; it is exported in evaluation mode, and stays as it is.
        path: the file; `.onnx` and `.pt2` are usual endings.
        format: `"onnx"`, for onnxruntime and others, or `"torch-export"`, for `torch.export.load`.
        image_size: side of the images, or height and width; those that the model was trained on if not given.

    >>> import tempfile
    >>> from gevit.models import build_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(build_model("z2_sa", "nano"), Path(folder, "model.pt2"), "torch-export", image_size=12)
    ...     program = torch.export.load(Path(folder, "model.pt2")).module()
    ...     tuple(program(torch.randn(5, 1, 12, 12)).shape)
    (5, 10)
    """
    check_choice("format", format, FORMATS)
    if format == "onnx" and next(model.parameters()).dtype == torch.float64:
        raise ValueError(
            "onnxruntime has no convolution in float64; export the model as float32, or in the format torch-export"
        )
    images = _images(model, EXAMPLES, image_size)
    program = _program(_in_plain_pytorch(model, images), images)
    with write_aside(path) as aside:
        (_write_onnx if format == "onnx" else _write_program)(program, model.describe().to_json(), aside)


def read(path: str | Path, format: str = "onnx") -> Logits:
    """What a file gives, as a function of images: by onnxruntime, or as a program of PyTorch.

    Args:
        path: a file that `export` wrote.
        format: the format it was written in.
    """
    if check_choice("format", format, FORMATS) == "torch-export":
        with Path(path).open("rb") as file:
            program: Logits = torch.export.load(file).module()
        return program
    with needs("onnxruntime", extra="export"):
        import onnxruntime
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def logits(images: Images) -> Tensor:
        (found,) = session.run(None, {"images": images.numpy()})
        return torch.from_numpy(found)

    return logits


class Comparison(NamedTuple):
    """What a file gives beside what the model gives.

    Attributes:
        difference: of the logits, the largest one, relative to the largest logit.
        equivariance: the worst relative error of the file's logits under quarter turns and flips of the model's group.
    """

    difference: float
    equivariance: float


@torch.no_grad()
def compare(
    model: EquivariantModel, path: str | Path, format: str = "onnx", image_size: int | tuple[int, int] | None = None
) -> Comparison:
    """Run the file on random images, another number of them than it was made with; the arguments are `export`'s."""
    program = read(path, format)
    images = _images(model, 3, image_size)
    with in_evaluation_mode(model):
        wanted = model(images.to(next(model.parameters()).device)).cpu()
    difference = (program(images) - wanted).abs().max() / wanted.abs().max()
    group = model.group if images.shape[-2] == images.shape[-1] else _keeping_sides(model.group)
    return Comparison(float(difference), measure(program, images[:1], group, translations=()).worst)


def _keeping_sides(group: Group) -> Group:
    """The subgroup that leaves height and width as they are, which are fixed in a file: half turns, and flips."""
    half_turns = 2 if group.rotations % 2 == 0 else 1
    return Dihedral(half_turns) if group.reflections else Cyclic(half_turns)


def _images(model: EquivariantModel, count: int, image_size: int | tuple[int, int] | None) -> Images:
    """Random images of the size that is asked for, or that the model was made for."""
    sides = image_size if isinstance(image_size, tuple) else 2 * (image_size or model.describe().image_size,)
    for side in sides:
        check_count("image_size", side)
    like = next(model.parameters())
    return torch.randn(count, model.preset.in_channels, *sides, dtype=like.dtype)


class _Tabulated(nn.Module):
    """The positional encoding of a layer for maps of one size: computed at the first call, a constant from then on.

    It need not be computed for every batch, and no other runtime can round it differently.
    """

    space: Tensor
    element: Tensor
    offset_index: Tensor
    element_index: Tensor

    def __init__(self, encoding: PositionalEncoding) -> None:
        super().__init__()
        self._encoding = [encoding]  # in a list: its weights are no part of this module
        self.own_query = encoding.own_query

    def forward(self, height: int, width: int) -> Positions:
        """The table."""
        if self._encoding:
            for name, table in self._encoding.pop()(height, width)._asdict().items():
                if isinstance(table, Tensor):
                    self.register_buffer(name, table.detach())
        return Positions(self.space, self.element, self.offset_index, self.element_index, self.own_query)


@torch.no_grad()
def _in_plain_pytorch(model: EquivariantModel, images: Images) -> EquivariantModel:
    """A copy on the CPU, in evaluation mode, that computes attention with the operators of PyTorch alone."""
    network = copy.deepcopy(model).eval().cpu()
    layers = [layer for layer in network.modules() if isinstance(layer, LiftingAttention | GroupAttention)]
    for layer in layers:
        layer.positions = _Tabulated(layer.positions)  # type: ignore[assignment]
    network(images)  # makes the tables; images that it cannot take are refused here, in its own words
    for layer in layers:
        layer.backend = "factored"
    return network


def _program(network: nn.Module, images: Tensor) -> torch.export.ExportedProgram:
    with torch.no_grad(), _silent():
        return torch.export.export(network, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False)


def _write_program(program: torch.export.ExportedProgram, info: str, path: Path) -> None:
    with _silent(), path.open("wb") as file:  # a file, not its name, which PyTorch wants to end in .pt2
        torch.export.save(program, file, extra_files={METADATA: info})


def _write_onnx(program: torch.export.ExportedProgram, info: str, path: Path) -> None:
    with needs("onnx and onnxscript", extra="export"):
        import onnx
        from onnx_ir import passes
        from onnx_ir.passes import common
        from onnxscript import optimizer
    with _silent():
        exported = torch.onnx.export(
            program,
            dynamic_shapes=({0: "batch"},),  # what the axis is called
            input_names=["images"],
            output_names=["logits"],
            external_data=False,
            dynamo=True,
            verbose=False,
            optimize=False,
        )
        assert exported is not None
        # All that the exporter could optimise takes it longer than everything else, and runtimes do it when they load.
        optimizer.fold_constants(exported.model)
        tidy = passes.Sequential(
            common.LiftConstantsToInitializersPass(size_limit=0),
            common.CommonSubexpressionEliminationPass(),
            common.RemoveUnusedNodesPass(),
        )
        tidy(exported.model)
    proto = exported.model_proto
    proto.metadata_props.add(key=METADATA, value=info)
    onnx.save(proto, path)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep the exporter's remarks about itself from the user: that torchvision is missing, what it will deprecate."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
