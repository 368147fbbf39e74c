"""Models as backbones: features instead of logits, maps of each stage, new classifiers, gradient checkpointing."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import gevit
from gevit.cli import main
from gevit.equivariance import assert_equivariant
from gevit.groups import Cyclic
from gevit.models.base import EquivariantModel
from gevit.models.info import ModelInfo

MODELS = [("r4_sa", "nano"), ("z2_sa", "tiny"), ("z2_sa", "pcam"), ("p4_cnn", "rotmnist"), ("cpvt", "rotmnist")]
by_name = pytest.mark.parametrize(("name", "preset"), MODELS)


def image_for(model: EquivariantModel, batch: int = 2) -> Tensor:
    dtype = next(model.parameters()).dtype
    side = max(model.smallest_image, 16) + 1
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, model.preset.in_channels, side, side + 2, dtype=dtype, generator=generator)


class TestPooledFeatures:
    @by_name
    def test_they_are_the_last_map_pooled(self, name: str, preset: str) -> None:
        torch.manual_seed(0)
        model = gevit.create_model(name, preset, in_channels=5, num_classes=0).double().eval()
        x = image_for(model)
        features = model(x)
        assert features.shape == (2, model.num_features)
        assert torch.equal(features, model.pooling([*model.forward_features(x).values()][-1]))
        assert "classes" not in model.body
        assert_equivariant(model, x[:1], model.group)
        torch.manual_seed(0)
        classifier = gevit.create_model(name, preset, in_channels=5, num_classes=3).double().eval()
        maps = classifier.forward_features(x)
        assert torch.equal(features, classifier.pooling([*maps.values()][-2]))  # the body is the same

    def test_save_and_load(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        info = ModelInfo(
            name="r4_sa",
            preset="nano",
            in_channels=1,
            num_classes=0,
            classes=(),
            image_size=28,
            mean=(0.5,),
            std=(0.5,),
        )
        model = gevit.create_model("r4_sa", preset="nano", num_classes=0).eval()
        gevit.save(model, info, tmp_path / "model.safetensors")
        loaded = gevit.load(tmp_path)
        x = image_for(model)
        assert torch.equal(loaded(x), model(x))
        for command in (["predict", "a.png"], ["evaluate", "--data", "digits"]):
            assert main([*command, "--checkpoint", str(tmp_path)]) == 2
            assert "gives features and has no classes" in capsys.readouterr().err


class TestResetClassifier:
    @by_name
    def test_only_the_classifier_changes(self, name: str, preset: str) -> None:
        model = gevit.create_model(name, preset).double().eval()
        x, before = image_for(model), copy.deepcopy(model.state_dict())
        model.reset_classifier(7)
        assert model(x).shape == (2, 7)
        changed = [key for key, value in model.state_dict().items() if not torch.equal(value, before[key])]
        assert changed
        assert all(key.startswith("body.classes.") for key in changed)
        assert_equivariant(model, x[:1], model.group)
        model.reset_classifier(0)
        assert model(x).shape == (2, model.num_features)
        model.reset_classifier(2)
        assert model(x).shape == (2, 2)
        assert model(x).dtype == torch.float64
        assert not any(layer.training for layer in model.modules())

    def test_numbers_that_make_no_sense(self) -> None:
        model = gevit.create_model("z2_cnn")
        with pytest.raises(ValueError, match="num_classes must be a positive integer, got -1"):
            model.reset_classifier(-1)
        with pytest.raises(TypeError, match="num_classes"):
            model.reset_classifier(False)
        assert model(image_for(model)).shape == (2, 10)


class TestFeatureMaps:
    @by_name
    def test_maps_are_as_announced_and_equivariant(self, name: str, preset: str) -> None:
        backbone = gevit.create_model(name, preset, features_only=True).double().eval()
        x = image_for(backbone.model)
        maps, info = backbone(x), backbone.feature_info
        assert [m.shape[1] for m in maps] == info.channels()
        assert [m.shape[2] for m in maps] == info.orders()
        reductions = info.reduction()
        assert reductions == sorted(set(reductions))
        everything = backbone.model.forward_features(x)
        for m, stage in zip(maps, info, strict=True):
            assert torch.equal(m, everything[stage.name])
        assert torch.equal(maps[-1], [*everything.values()][-1])
        assert_equivariant(backbone, x[:1], backbone.group)

    def test_the_reduction_is_that_of_the_sides(self) -> None:
        backbone = gevit.create_model("r4_sa", preset="small", features_only=True).eval()
        assert backbone.feature_info.reduction() == [2, 4, 8, 16]
        with torch.no_grad():
            maps = backbone(torch.randn(1, 3, 32, 64))
        assert [tuple(m.shape[-2:]) for m in maps] == [(16, 32), (8, 16), (4, 8), (2, 4)]

    def test_some_of_them(self) -> None:
        full = gevit.create_model("r4_sa", preset="tiny", features_only=True).eval()
        some = gevit.models.FeatureMaps(full.model, out_indices=(1, 0))
        assert not some.training
        x = image_for(full.model)
        assert all(map(torch.equal, some(x), full(x)[1::-1]))
        runs: list[object] = []
        full.model.body["norm"].register_forward_hook(lambda *_: runs.append(1))
        some(x)
        assert not runs  # what is not needed is not computed
        with pytest.raises(ValueError, match=r"out_indices must be from 0 to 2 .*lifting, .*norm.*got 3"):
            gevit.create_model("r4_sa", preset="tiny", features_only=True, out_indices=(0, 3))
        with pytest.raises(ValueError, match="give features_only=True"):
            gevit.create_model("r4_sa", preset="nano", out_indices=(0,))  # type: ignore[call-overload]

    def test_maps_before_a_restriction_are_on_the_subgroup(self) -> None:
        torch.manual_seed(0)
        backbone = gevit.create_model("d4_sa", preset="nano", restrict="c4", features_only=True).double().eval()
        assert backbone.feature_info.orders() == [4, 4]
        assert backbone.feature_info.channels() == [32, 16]
        x = image_for(backbone.model)
        assert [m.shape[1:3] for m in backbone(x)] == [(32, 4), (16, 4)]
        assert_equivariant(backbone, x[:1], Cyclic(4))

    def test_they_can_be_pickled_and_trained(self) -> None:
        backbone = gevit.create_model("r4_sa", preset="nano", features_only=True)
        pickle.loads(pickle.dumps(backbone))
        sum(m.square().mean() for m in backbone(image_for(backbone.model))).backward()
        assert all(p.grad is not None for p in backbone.parameters())


def step(model: EquivariantModel, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits and gradients of a training step, with dropout."""
    torch.manual_seed(1)
    logits = model(x)
    return logits, list(torch.autograd.grad(logits.square().sum(), list(model.parameters())))


@contextmanager
def kept_bytes() -> Iterator[Callable[[], int]]:
    """What autograd keeps for the backward pass, apart from the inputs of layers that are run again."""
    sizes: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        yield lambda: sum(sizes.values())


class TestGradientCheckpointing:
    @by_name
    def test_same_logits_gradients_and_statistics(self, name: str, preset: str) -> None:
        torch.manual_seed(0)
        plain = gevit.create_model(name, preset).train()
        if isinstance(plain, gevit.models.GroupTransformer):
            plain.set_drop_path(0.3)
        for layer in plain.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.2
            elif isinstance(layer, gevit.GroupAttention):
                layer.dropout = 0.2
        saving = copy.deepcopy(plain)
        saving.set_grad_checkpointing()
        x = image_for(plain)
        logits, gradients = step(plain, x)
        again, again_gradients = step(saving, x)
        assert torch.equal(logits, again)
        assert all(map(torch.equal, gradients, again_gradients))
        state = saving.state_dict()
        assert all(torch.equal(value, state[key]) for key, value in plain.state_dict().items())
        torch.manual_seed(2)
        assert not torch.equal(plain(x), logits)  # dropout is at work
        saving.set_grad_checkpointing(False)
        assert not saving.grad_checkpointing

    def test_less_is_kept(self) -> None:
        model = gevit.create_model("d4_sa", preset="nano").train()
        x = torch.randn(2, 1, 28, 28)
        with kept_bytes() as everything:
            model(x)
            plain = everything()
        model.set_grad_checkpointing()
        with kept_bytes() as rest:
            features = model.forward_features(x)
            saving = rest() + sum(m.untyped_storage().nbytes() for m in features.values())
        assert saving < plain / 2

    def test_a_model_that_is_compiled_as_well_trains(self) -> None:
        """In a process of its own, without the run-time checks of shapes that the tests have."""
        program = """
import torch, gevit
model = gevit.create_model("r4_sa", "nano")
model.set_grad_checkpointing()
torch.compile(model, backend="aot_eager", fullgraph=True)(torch.randn(2, 1, 12, 12)).sum().backward()
assert all(weight.grad is not None for weight in model.parameters())
"""
        answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert answer.returncode == 0, answer.stderr


MEASURE = """
import torch, gevit
from gevit.bench.measure import peak, resident
model = gevit.create_model("d4_sa", preset="tiny")
def infer(side):
    with torch.inference_mode():
        model.eval()(torch.randn(1, 3, side, side))
def train(side):
    model.train()(torch.randn(1, 3, side, side)).sum().backward()
for step in (infer, train):
    step(32)  # what is loaded and allocated once
    before = resident()
    step(224)
    print((peak() - before) / 2**20)
"""


def test_an_image_of_224_pixels_takes_the_memory_that_is_stated() -> None:
    """In a process of its own, whose peak is that of the model; docs/backbone.md states the bounds."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True, env=environment)
    infer, train = map(float, done.stdout.split())
    assert infer < 64
    assert train < 160


def test_looking_at_the_maps_leaves_every_layer_in_its_mode() -> None:
    model = gevit.create_model("r4_sa", preset="nano").train()
    frozen = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm3d)]
    for layer in frozen:
        layer.eval()
    gevit.models.FeatureMaps(model)
    assert model.training
    assert not any(layer.training for layer in frozen)
