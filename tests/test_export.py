"""Models in other runtimes: the same logits, equivariant there too, any number of images."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch

import gevit
from gevit.attention import graph
from gevit.cli import main
from gevit.export import compare, export, read
from gevit.groups import Cyclic, Dihedral, Group
from tests.attention_problems import make_problem

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of the exporters, about themselves
    pytest.mark.usefixtures("unchecked_shapes"),  # a graph has symbols for sizes
]


@pytest.mark.parametrize("encoding", ["lifting", "ge", "gsa", "relative"])
@pytest.mark.parametrize("group", [Cyclic(1), Cyclic(8), Dihedral(4)], ids=str)
@pytest.mark.parametrize(("size", "neighborhood"), [((6, 5), 3), ((6, 5), None), ((3, 7), 5), ((4, 4), 1)])
def test_the_graph_is_the_equation(
    group: Group,
    encoding: str,
    size: tuple[int, int],
    neighborhood: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    problem = make_problem(group, encoding, size, neighborhood, dtype=torch.float64)
    wanted = problem.attend("reference")
    for numbers in (graph.IMAGE_NUMBERS, 2**11, 1):  # all outputs at once, some, one
        monkeypatch.setattr(graph, "IMAGE_NUMBERS", numbers)
        torch.testing.assert_close(graph.forward(*problem, scale=0.4), wanted)


@pytest.mark.parametrize(
    ("format", "name", "preset", "encoding", "size"),
    [
        ("onnx", "r8_sa", "nano", "relative", 9),
        ("torch-export", "z2_sa", "nano", "ge", 12),
        ("torch-export", "r4_sa", "nano", "ge", (8, 12)),
        ("torch-export", "r4_sa", "nano", "gsa", 9),
    ],
)
def test_same_logits_and_as_equivariant(
    format: str, name: str, preset: str, encoding: str, size: int | tuple[int, int], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = gevit.create_model(name, preset, encoding=encoding).eval()
    export(model, tmp_path / "model", format, size)
    difference, equivariance = compare(model, tmp_path / "model", format, size)
    assert difference < 1e-5
    if format == "onnx":
        onnx = pytest.importorskip("onnx")
        graph = onnx.load(tmp_path / "model").graph
        axes = [value.type.tensor_type.shape.dim[0].dim_param for value in (*graph.input, *graph.output)]
        assert axes == ["batch", "batch"]
    assert (equivariance < 1e-5) == (encoding != "gsa")
    if format == "torch-export":  # onnxruntime multiplies no matrices of no images
        assert read(tmp_path / "model", format)(
            torch.zeros(0, 1, *(2 * (size,) if isinstance(size, int) else size))
        ).shape == (0, 10)


def test_pretrained_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    path = tmp_path / "d4.onnx"
    command = ["export", "--model", "d4_sa", "--preset", "tiny", "--pretrained", "eurosat", "--format", "onnx"]
    assert main([*command, "--out", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["difference"] < 1e-5
    model = gevit.create_model("d4_sa", preset="tiny", pretrained="eurosat")
    logits = read(path)
    x = torch.rand(2, 3, 64, 64)
    assert torch.allclose(logits(x), model(x), atol=1e-5 * float(model(x).abs().max()))
    group = Dihedral(4)
    for element in range(group.order):
        assert torch.allclose(
            logits(group.act_on_image(x, element)), logits(x), atol=1e-5 * float(logits(x).abs().max())
        )
    proto = onnx.load(path)
    assert {node.domain for node in proto.graph.node} == {""}  # standard operators alone
    known = json.loads(next(entry.value for entry in proto.metadata_props if entry.key == "gevit"))
    assert tuple(known["classes"]) == model.info.classes  # type: ignore[union-attr]


def test_the_name_of_the_file_is_printed_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / ("z2[v1]" + "-long" * 30 + ".pt2")
    command = ["export", "--model", "z2_sa", "--preset", "nano", "--size", "1", "--format", "torch-export"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a user is not told what the exporter thinks of itself
        assert main([*command, "--out", str(path)]) == 0
    assert capsys.readouterr().out.startswith(f"{path}: torch-export, ")


def test_the_ending_says_the_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.pt2"
    assert main(["export", "--model", "z2_sa", "--preset", "nano", "--size", "12", "--out", str(path)]) == 0
    assert capsys.readouterr().out.startswith(f"{path}: torch-export, ")
    assert read(path, "torch-export")(torch.zeros(1, 1, 12, 12)).shape == (1, 10)


def test_bad_input_is_refused_and_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "model.onnx")]
    for words, message in (
        (["--model", "r4_sa", "--size", "5"], "at least 22x22"),
        (["--model", "r4_sa", "--size", "5", "6", "7"], "one side, or height and width"),
        (["--model", "r4_sa", "--format", "torch-export"], "leave --format out, or name the file model.pt2"),
        ([], "which model"),
        (["--model", "r4_xx"], "unknown model"),
        (["--model", "r4_sa", "--preset", "nano", "--dtype", "float64"], "no convolution in float64; export the model"),
        (["--checkpoint", str(tmp_path / "nothing")], "nothing"),
    ):
        assert main(["export", *words, *out]) == 2
        assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert main(["export", "--model", "r4_sa", "--out", str(tmp_path)]) == 2
    assert f"--out {tmp_path} cannot be written: it is a folder" in capsys.readouterr().err
    with pytest.raises(ValueError, match="unknown format"):
        export(gevit.create_model("z2_sa", "nano"), tmp_path / "model", "tflite")
