from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gevit
from gevit.attention import native
from gevit.data import load_digits, normalize_digits
from gevit.equivariance import assert_equivariant, measure
from gevit.groups import Cyclic
from gevit.layers import InvariantPooling
from gevit.models import EquivariantModel, GroupTransformer, Preset, Stage
from gevit.models.base import info_of
from gevit.models.registry import SELF_ATTENTION

PARAMETERS = {
    ("z2_sa", "rotmnist"): 44_368,
    ("r4_sa", "rotmnist"): 44_428,
    ("r8_sa", "rotmnist"): 44_508,
    ("r12_sa", "rotmnist"): 44_588,
    ("d1_sa", "rotmnist"): 44_388,
    ("d1_sa", "cifar10"): 3_001_808,
    ("r4_sa", "pcam"): 207_034,
}
EQUIVARIANT = ["r4_sa", "r8_sa", "r12_sa", "r16_sa", "d1_sa", "d4_sa", "d8_sa"]


@pytest.mark.parametrize(("name", "preset"), PARAMETERS)
def test_parameter_counts(name: str, preset: str) -> None:
    assert sum(p.numel() for p in gevit.create_model(name, preset).parameters()) == PARAMETERS[name, preset]


@functools.cache
def trained(name: str, encoding: str, steps: int) -> EquivariantModel:
    """A model after some optimizer steps on real digits (none: random weights)."""
    torch.manual_seed(0)
    model = gevit.create_model(name, encoding=encoding)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    digits, labels = load_digits()
    for step in range(steps):
        batch = torch.arange(step, 5000, 1250)[:2]
        loss = nn.functional.cross_entropy(model(normalize_digits(digits[batch])[..., 3:25, 3:25]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def digits(size: int = 22, dtype: torch.dtype = torch.float32, count: int = 1) -> torch.Tensor:
    first = (28 - size) // 2
    images = normalize_digits(load_digits()[0][777 : 777 + count])
    return images[..., first : first + size, first : first + size].to(dtype)


@pytest.mark.parametrize("steps", [0, 20], ids=["random", "trained"])
@pytest.mark.parametrize("encoding", ["ge", "relative"])
@pytest.mark.parametrize("name", ["r4_sa", "d4_sa"])
def test_exact_invariance_and_equivariance(name: str, encoding: str, steps: int) -> None:
    """Logits and every feature map, both poolings; 1e-5 in float32, 1e-10 in float64, odd sizes too."""
    model = copy.deepcopy(trained(name, encoding, steps))
    for pooling in ("max_mean", "sum_max"):
        model.pooling = InvariantPooling(pooling)
        assert_equivariant(model, digits(28, count=2), model.group, tolerance=1e-5)
    assert_equivariant(model.forward_features, digits(27), model.group, tolerance=1e-5)
    assert_equivariant(in_double(model), digits(22, torch.float64), model.group, tolerance=1e-10)


@pytest.mark.parametrize("name", EQUIVARIANT)
def test_every_group(name: str) -> None:
    """As above, for all groups, the large ones included, in the least that shows it."""
    random = gevit.create_model(name, neighborhood=3, encoding="relative").eval()
    assert_equivariant(in_double(random), digits(22, torch.float64), random.group, tolerance=1e-10)
    model = copy.deepcopy(trained(name, "ge", 2))
    assert_equivariant(model, digits(23), model.group, tolerance=1e-5)
    assert_equivariant(in_double(model), digits(22, torch.float64), model.group, tolerance=1e-10)


def in_double(model: EquivariantModel) -> Callable[[torch.Tensor], list[object]]:
    """Feature maps and logits, in double precision."""
    model.double()
    return lambda x: [model.forward_features(x), model(x)]


@pytest.mark.parametrize(
    ("name", "encoding", "steps"),
    [("r4_sa", "ge", 0), ("r4_sa", "ge", 20), ("d1_sa", "ge", 20), ("d4_sa", "relative", 0)],
)
def test_global_attention(name: str, encoding: str, steps: int) -> None:
    model = gevit.create_model(name, neighborhood=None, encoding=encoding).eval()
    model.load_state_dict(trained(name, encoding, steps).state_dict())
    assert_equivariant(model.forward_features, digits(23), model.group, tolerance=1e-5)
    assert_equivariant(model.double(), digits(22, torch.float64), model.group, tolerance=1e-10)


@pytest.mark.parametrize("name", ["r4_sa", "d4_sa"])
@pytest.mark.parametrize("steps", [0, 20], ids=["random", "trained"])
def test_gsa_is_not_equivariant(name: str, steps: int) -> None:
    """The negative control: the checker sees what the paper criticises."""
    model = trained(name, "gsa", steps)
    assert measure(model, digits(28), model.group).worst > 1e-4
    assert measure(model.forward_features, digits(28), model.group).worst > 1e-2
    with pytest.raises(AssertionError, match=r"not equivariant to element \d of .*worst relative error"):
        assert_equivariant(model, digits(28), model.group, tolerance=1e-4)


def test_translation_model_is_not_rotation_invariant() -> None:
    model = trained("z2_sa", "ge", 0)
    assert measure(model, digits(28), Cyclic(4)).worst > 1e-3


def test_finer_angles_are_reported_as_approximate() -> None:
    model = trained("r8_sa", "ge", 0)
    report = measure(model, digits(28), Cyclic(8))
    assert [error.exact for error in report] == [True, False] * 4
    assert max(error for error in report if not error.exact) > 1e-4 > report.worst


@pytest.mark.parametrize(("preset", "channels", "size"), [("cifar10", 3, 17), ("pcam", 3, 90)])
@pytest.mark.parametrize("name", ["r4_sa", "d1_sa"])
def test_other_presets(name: str, preset: str, channels: int, size: int) -> None:
    model = gevit.create_model(name, preset, neighborhood=3).eval()
    x = torch.randn(1, channels, size, size)
    assert_equivariant(model, x, model.group, tolerance=1e-5)
    assert model(x).shape == (1, model.preset.num_classes)


@pytest.mark.parametrize("name", gevit.list_models())
def test_every_model(name: str) -> None:
    """One matrix over the registry: other channels and classes, non-square images, one after the other."""
    options: dict[str, Any] = {"neighborhood": 3, "encoding": "relative"} if name in SELF_ATTENTION else {}
    model = gevit.create_model(name, in_channels=2, num_classes=3, **options).eval()
    for size in ((22, 31), (28, 28), (25, 23), (28, 28)):
        assert model(torch.randn(1, 2, *size)).shape == (1, 3)


def test_feature_maps() -> None:
    model = gevit.create_model("r4_sa").eval()
    features = model.forward_features(torch.randn(2, 1, 28, 28))
    shapes = {name: tuple(x.shape) for name, x in features.items()}
    assert shapes["lifting"] == (2, 20, 4, 28, 28)
    assert shapes["stage1_block1"] == (2, 20, 4, 24, 24)
    assert shapes["stage1_pool"] == (2, 20, 4, 12, 12)
    assert shapes["classes"] == (2, 10, 4, 4, 4)


def test_copies_and_state() -> None:
    model = gevit.create_model("d4_sa")
    x = torch.randn(1, 1, 24, 24)
    train_keys = list(model.state_dict())
    wanted = model.eval()(x)
    assert list(model.state_dict()) == train_keys
    assert set(train_keys) == {name for name, _ in model.named_parameters()}
    assert torch.equal(copy.deepcopy(model)(x), wanted)
    other = gevit.create_model("d4_sa").eval()
    assert not torch.equal(other(x), wanted)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), wanted)
    torch.testing.assert_close(model.double()(x.double()), wanted.double(), rtol=1e-4, atol=1e-4)
    assert torch.equal(model.float()(x), wanted)


@pytest.mark.parametrize("count", [1, 3])
def test_training_is_bitwise_repeatable_with_as_many_threads(count: int) -> None:
    model = gevit.create_model("r4_sa")
    x, labels = torch.randn(3, 1, 28, 28), torch.tensor([1, 2, 3])
    threads, results = torch.get_num_threads(), []
    try:
        torch.set_num_threads(count)
        for _ in range(2):
            torch.manual_seed(1)
            loss = nn.functional.cross_entropy(model(x), labels)
            results.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("backend", ["auto", "factored", "reference"])
def test_empty_batch(backend: str) -> None:
    assert gevit.create_model("r4_sa", backend=backend).eval()(torch.zeros(0, 1, 28, 28)).shape == (0, 10)


def test_dropout_is_on_in_training_alone() -> None:
    model = gevit.create_model("r4_sa")
    x = torch.randn(1, 1, 28, 28)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


class TestGradients:
    """They are finite whatever the image, and of one order of magnitude at the start."""

    def check(self, value: float, name: str = "z2_sa", preset: str = "rotmnist", **options: Any) -> None:
        model = gevit.create_model(name, preset, neighborhood=3, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        side = max(model.smallest_image, 4)
        images = torch.full((1, model.preset.in_channels, side, side), value)
        for _ in range(2):
            loss = nn.functional.cross_entropy(model(images), torch.tensor([1]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert loss.isfinite()
            assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())

    @pytest.mark.parametrize("value", [0.0, 1.0, -0.4242])
    @pytest.mark.parametrize("backend", ["reference", "factored", "native"])
    def test_constant_images_in_every_backend(self, backend: str, value: float) -> None:
        if backend == "native" and not native.is_available():
            pytest.skip("the native kernel is not built")
        self.check(value, backend=backend)

    @pytest.mark.parametrize("encoding", ["ge", "gsa", "relative"])
    @pytest.mark.parametrize("name", ["r4_sa", "d1_sa"])
    def test_a_black_image_in_every_encoding(self, name: str, encoding: str) -> None:
        self.check(0.0, name, encoding=encoding)

    @pytest.mark.parametrize("preset", ["cifar10", "pcam"])
    def test_a_black_image_in_every_preset(self, preset: str) -> None:
        self.check(0.0, "d1_sa", preset)

    def test_plain_sgd_needs_no_warm_up(self) -> None:
        """Coordinate 0 meets a norm: were it constant there, the first step would drown all other coordinates."""
        model = gevit.create_model("z2_sa", neighborhood=3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(10):
            images, labels = digits(22, count=4), torch.tensor([1, 1, 1, 1])
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            if step == 0:
                sizes = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None])
                assert sizes.max() < 1000 * sizes.median()
            optimizer.step()
            assert loss.isfinite()
        assert max(p.abs().max().item() for p in model.parameters()) < 10


@pytest.mark.usefixtures("unchecked_shapes")
class TestGraphs:
    """A model as a graph gives the model's logits, for images of the size it was made with."""

    def small(self, backend: str, neighborhood: int | None = 3) -> GroupTransformer:
        preset = Preset(1, num_classes=3, image_size=8, stages=(Stage(8, 1, crops=(1,)),), heads=2)
        return GroupTransformer(Cyclic(4), preset, neighborhood, backend=backend).eval()

    @pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")
    @pytest.mark.parametrize("neighborhood", [3, None])
    def test_traced(self, neighborhood: int | None) -> None:
        model = self.small("factored", neighborhood)
        traced = torch.jit.trace(model, torch.randn(2, 1, 8, 8))
        images = torch.randn(2, 1, 8, 8)
        torch.testing.assert_close(traced(images), model(images))

    @pytest.mark.parametrize("backend", ["reference", "factored"])
    def test_exported_for_batches_of_any_size(self, backend: str) -> None:
        model, shapes = self.small(backend), ({0: torch.export.Dim("batch")},)
        exported = torch.export.export(model, (torch.randn(2, 1, 8, 8),), dynamic_shapes=shapes).module()
        for count in (1, 3):
            images = torch.randn(count, 1, 8, 8)
            torch.testing.assert_close(exported(images), model(images))

    def test_gradients_of_torch_func(self) -> None:
        """Also those of a black image, which norms stop."""
        model = self.small("reference")
        parameters: dict[str, torch.Tensor] = dict(model.named_parameters())

        def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
            logits = torch.func.functional_call(model, parameters, torch.zeros(1, 1, 8, 8))
            return nn.functional.cross_entropy(logits, torch.tensor([1]))

        found = torch.func.grad(loss)(parameters)
        wanted = torch.autograd.grad(loss(parameters), list(parameters.values()))
        torch.testing.assert_close(list(found.values()), list(wanted))


@pytest.mark.usefixtures("unchecked_shapes")
class TestBadInput:
    def test_names(self) -> None:
        with pytest.raises(ValueError, match=r"unknown model 'r4_as'; valid: z2_sa, .*did you mean 'r4_sa'"):
            gevit.create_model("r4_as")
        for wrong, right in (("D4_SA", "d4_sa"), ("Z2_SA", "z2_sa")):
            with pytest.raises(ValueError, match=f"unknown model '{wrong}'.*did you mean '{right}'"):
                gevit.create_model(wrong)
        with pytest.raises(ValueError, match="unknown encoding 'GE'.*did you mean 'ge'"):
            gevit.create_model("r4_sa", encoding="GE")
        with pytest.raises(ValueError, match="unknown preset 'mnist'; valid: .*did you mean 'rotmnist'"):
            gevit.create_model("r4_sa", "mnist")
        with pytest.raises(ValueError, match="unknown encoding"):
            gevit.create_model("r4_sa", encoding="none")
        with pytest.raises(ValueError, match="unknown pooling"):
            gevit.create_model("r4_sa", pooling="mean")
        with pytest.raises(ValueError, match="unknown backend"):
            gevit.create_model("r4_sa", backend="gpu")
        with pytest.raises(ValueError, match="no pretrained weights"):
            gevit.create_model("r8_sa", pretrained=True)
        with pytest.raises(ValueError, match="num_classes must be a positive integer, got -1"):
            gevit.create_model("r4_sa", num_classes=-1)

    @pytest.mark.parametrize(("preset", "smallest"), [("rotmnist", 22), ("cifar10", 1), ("pcam", 48)])
    def test_smallest_image(self, preset: str, smallest: int) -> None:
        model = gevit.create_model("z2_sa", preset, neighborhood=3).eval()
        channels = 1 if preset == "rotmnist" else 3
        assert model(torch.randn(1, channels, smallest, smallest + 1)).isfinite().all()
        if smallest > 1:
            with pytest.raises(ValueError, match=f"images must be at least {smallest}x{smallest} .*got"):
                model(torch.randn(1, channels, smallest, smallest - 1))

    def test_images(self) -> None:
        model = gevit.create_model("r4_sa").eval()
        with pytest.raises(ValueError, match="got 3 channels"):
            model(torch.randn(1, 3, 28, 28))
        with pytest.raises(TypeError, match="an image must be"):
            model(torch.zeros(1, 1, 28, 28, dtype=torch.uint8))
        with pytest.raises(TypeError, match=r"torch\.uint8"):
            model(torch.zeros(1, 1, 28, 28, dtype=torch.uint8))


@pytest.mark.parametrize("preset", ["rotmnist", "nano"])
@pytest.mark.parametrize("name", ["z2_sa", "d4_sa", "r8_sa"])
def test_models_are_made_where_the_default_device_is(name: str, preset: str) -> None:
    with torch.device("meta"):
        model = gevit.create_model(name, preset=preset)
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}
    assert model.eval()(torch.empty(2, 1, 28, 28, device="meta")).shape == (2, 10)


@pytest.mark.parametrize("preset", ["rotmnist", "nano"])
def test_an_image_of_another_precision_is_told_how_to_fit(preset: str) -> None:
    model = gevit.create_model("r4_sa", preset=preset).eval()
    with pytest.raises(TypeError, match=r"input is torch.float64 and the weights are torch.float32.*x.to\("):
        model(torch.rand(1, 1, 28, 28, dtype=torch.float64))


@pytest.mark.parametrize("rate", [1.0, -0.1, 2.0])
def test_rates_of_stochastic_depth_that_cannot_be(rate: float) -> None:
    model = gevit.create_model("r4_sa", preset="nano")
    assert isinstance(model, GroupTransformer)
    with pytest.raises(ValueError, match="rate of stochastic depth must be at least 0 and below 1"):
        model.set_drop_path(rate)


def test_pixels_that_are_integers_are_not_normalised() -> None:
    model = gevit.create_model("r4_sa", preset="nano", pretrained=True)
    with pytest.raises(TypeError, match=r"got torch.uint8; convert x.float\(\) / 255"):
        info_of(model).normalize(torch.zeros(1, 28, 28, dtype=torch.uint8))


@pytest.mark.parametrize(("name", "preset"), [("r4_sa", "rotmnist"), ("r4_sa", "nano"), ("p4_cnn", "rotmnist")])
def test_the_copies_that_data_parallel_makes(name: str, preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made on devices; here on the CPU, by the same code. They have weights, and no parameters()."""
    module = sys.modules["torch.nn.parallel.replicate"]
    monkeypatch.setattr(module, "_get_device_index", lambda *_: 0)
    monkeypatch.setattr(
        module,
        "_broadcast_coalesced_reshape",
        lambda tensors, devices, detach=False: [[tensor.clone() for tensor in tensors] for _ in devices],
    )
    model = gevit.create_model(name, preset).eval()
    [replica] = torch.nn.parallel.replicate(model, [0])
    assert not list(replica.parameters())
    assert torch.equal(replica(digits(28)), model(digits(28)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("preset", ["rotmnist", "nano"])
def test_half_precision_and_back_leaves_tables_as_they_were(preset: str, dtype: torch.dtype) -> None:
    model = gevit.create_model("r8_sa", preset, neighborhood=7).to(dtype).float().eval()
    other = gevit.create_model("r8_sa", preset, neighborhood=7).eval()
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(digits(24)), other(digits(24)))


def test_a_model_that_starts_on_the_meta_device_can_be_filled() -> None:
    model = gevit.create_model("d4_sa", "nano", restrict="c4").eval()
    with torch.device("meta"):
        empty = gevit.create_model("d4_sa", "nano", restrict="c4").eval()
    assigned = copy.deepcopy(empty)
    empty.to_empty(device="cpu")
    empty.load_state_dict(model.state_dict())
    assert torch.equal(empty(digits()), model(digits()))
    assigned.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(assigned(digits()), model(digits()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("preset", ["rotmnist", "nano"])
def test_a_default_precision_of_16_bits_makes_models_in_it(preset: str, dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = gevit.create_model("r4_sa", preset).eval()
        logits = model(digits().to(dtype))
    finally:
        torch.set_default_dtype(before)
    assert logits.dtype == dtype
    torch.testing.assert_close(logits.float(), model.float()(digits()), rtol=0.1, atol=0.1)


def test_a_group_outlives_the_mode_it_was_made_in() -> None:
    with torch.inference_mode():
        group = Cyclic(5)
    signal = torch.randn(1, 5, 4, 4, requires_grad=True)
    group.act_on_signal(signal, 1).sum().backward()
    assert signal.grad is not None
