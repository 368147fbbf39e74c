from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import Tensor, nn

import gevit
from gevit.data import load_digits, normalize_digits
from gevit.equivariance import assert_equivariant, measure
from gevit.group_conv import GroupConv
from gevit.groups import Cyclic, Dihedral, Group
from gevit.models import EquivariantModel, official
from gevit.models.cnn import AttentiveConv, Border

BASELINES = ["z2_cnn", "p4_cnn", "alpha_p4_cnn", "cpvt"]
EQUIVARIANT = ["p4_cnn", "alpha_p4_cnn"]
PARAMETERS = {
    # Romero et al. give 21.75k (with biases, which batch norm makes idle), 77.54k and 73.13k.
    ("z2_cnn", "rotmnist"): 21_620,
    ("p4_cnn", "rotmnist"): 77_539,
    ("alpha_p4_cnn", "rotmnist"): 73_130,
    ("cpvt", "rotmnist"): 43_968,
    ("p4_cnn", "cifar10"): 77_881,
    ("p4_cnn", "pcam"): 68_153,
}


@functools.cache
def trained(name: str, steps: int) -> EquivariantModel:
    """A model after some optimizer steps on real digits (none: random weights)."""
    torch.manual_seed(0)
    model = gevit.create_model(name)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    digits, labels = load_digits()
    for step in range(steps):
        batch = torch.arange(step, 5000, 1250)
        loss = nn.functional.cross_entropy(model(normalize_digits(digits[batch])), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def digits(size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    images = normalize_digits(load_digits()[0][[777, 3210]])
    return nn.functional.interpolate(images, (size, size)).to(dtype)


def test_names() -> None:
    attention = ["z2_sa", "r4_sa", "r8_sa", "r12_sa", "r16_sa", "d1_sa", "d4_sa", "d8_sa"]
    assert gevit.list_models() == attention + BASELINES


@pytest.mark.parametrize(("name", "preset"), PARAMETERS)
def test_parameter_counts(name: str, preset: str) -> None:
    assert sum(p.numel() for p in gevit.create_model(name, preset).parameters()) == PARAMETERS[name, preset]


@pytest.mark.parametrize("steps", [0, 6], ids=["random", "trained"])
@pytest.mark.parametrize("name", EQUIVARIANT)
def test_exact_invariance_and_equivariance(name: str, steps: int) -> None:
    """Logits and every feature map: 1e-5 in float32, 1e-10 in float64; odd, even, small and large images."""
    model = copy.deepcopy(trained(name, steps))
    assert model.group == Cyclic(4)
    for size in (28, 27):
        assert_equivariant(lambda x: [model.forward_features(x), model(x)], digits(size), model.group, tolerance=1e-5)
    model.double()
    for size in (22, 29):
        images = digits(size, torch.float64)
        assert_equivariant(lambda x: [model.forward_features(x), model(x)], images, model.group, tolerance=1e-10)
    assert_equivariant(model, images[..., 3:], model.group, tolerance=1e-10)


@pytest.mark.parametrize("name", ["z2_cnn", "cpvt"])
@pytest.mark.parametrize("steps", [0, 6], ids=["random", "trained"])
def test_others_are_not_invariant(name: str, steps: int) -> None:
    """The negative control: without the group, a turned digit has other logits."""
    model = trained(name, steps)
    assert model.group == Cyclic(1)
    assert measure(model, digits(28), Cyclic(4)).worst > 1e-2
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_equivariant(model, digits(28), Cyclic(4), tolerance=1e-2)


def test_rotations_alone() -> None:
    """And p4_cnn knows no reflections."""
    assert measure(trained("p4_cnn", 6), digits(28), Dihedral(1)).worst > 1e-2


@pytest.mark.parametrize(("preset", "classes"), [("rotmnist", 10), ("cifar10", 10), ("pcam", 2)])
@pytest.mark.parametrize("name", BASELINES)
def test_a_training_step(name: str, preset: str, classes: int) -> None:
    """On images of the preset's size: every parameter has a gradient that is finite and not zero, and learns."""
    model = gevit.create_model(name, preset)
    size = model.preset.image_size
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logits = model(torch.randn(2, model.preset.in_channels, size, size))
    assert logits.shape == (2, classes)
    before = copy.deepcopy(model.state_dict())
    nn.functional.cross_entropy(logits, torch.tensor([0, 1])).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name
    optimizer.step()
    assert all(not torch.equal(before[key], value) for key, value in model.named_parameters())


@pytest.mark.parametrize("name", BASELINES)
def test_learns_a_few_digits(name: str) -> None:
    model = gevit.create_model(name)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    digits, labels = load_digits()
    losses = []
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(normalize_digits(digits[::1250])), labels[::1250])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert min(losses) < 0.5 * losses[0]


@pytest.mark.parametrize("name", BASELINES)
class TestEveryBaseline:
    def test_feature_maps(self, name: str) -> None:
        """Maps are signals on the group, from the lifting to the classes, whose pooling are the logits."""
        model = gevit.create_model(name, in_channels=2, num_classes=3).eval()
        images = torch.randn(2, 2, 28, 31)
        maps = model.forward_features(images)
        assert next(iter(maps)) == "lifting"
        assert list(maps)[-1] == "classes"
        assert all(x.ndim == 5 and x.shape[:3:2] == (2, model.group.order) for x in maps.values())
        assert maps["classes"].shape[1] == 3
        torch.testing.assert_close(maps["classes"].amax(2).mean((-2, -1)), model(images))

    def test_any_size(self, name: str) -> None:
        model = gevit.create_model(name).eval()
        for height, width in ((model.smallest_image, 9), (23, 22), (40, 28)):
            assert model(torch.randn(1, 1, height, width)).isfinite().all()

    def test_empty_batch(self, name: str) -> None:
        assert gevit.create_model(name).eval()(torch.zeros(0, 1, 28, 28)).shape == (0, 10)

    def test_dropout_is_on_in_training_alone(self, name: str) -> None:
        model, x = gevit.create_model(name), torch.randn(2, 1, 28, 28)
        assert not torch.equal(model(x), model(x))
        model.eval()
        assert torch.equal(model(x), model(x))

    def test_state(self, name: str) -> None:
        model, other = trained(name, 6), gevit.create_model(name).eval()
        x = torch.randn(2, 1, 28, 28)
        assert list(other.state_dict()) == list(copy.deepcopy(other).train().state_dict())
        assert not torch.equal(other(x), model(x))
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(x), model(x))

    @pytest.mark.parametrize(
        "option", [{"neighborhood": None}, {"encoding": "gsa"}, {"pooling": "sum_max"}, {"backend": "native"}], ids=str
    )
    def test_options_of_attention(self, name: str, option: dict[str, str | None]) -> None:
        ((key, value),) = option.items()
        with pytest.raises(ValueError, match=rf"{key}={value!r} is an option of the self-attention models.*{name}"):
            gevit.create_model(name, **option)  # type: ignore[call-overload]

    def test_no_weights_of_the_authors(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"unknown model of the authors' code '{name}'; valid: z2_sa, r4_sa"):
            official.load({}, name)

    @pytest.mark.usefixtures("unchecked_shapes")
    def test_images(self, name: str) -> None:
        model = gevit.create_model(name).eval()
        with pytest.raises(ValueError, match="got 3 channels"):
            model(torch.randn(1, 3, 28, 28))
        with pytest.raises(TypeError, match=r"torch\.uint8"):
            model(torch.zeros(1, 1, 28, 28, dtype=torch.uint8))


def test_the_layers_of_cohen_and_welling() -> None:
    """28x28 becomes one pixel, by way of one pool."""
    maps = gevit.create_model("z2_cnn").eval().forward_features(torch.randn(1, 1, 28, 28))
    sides = [26, 24, 12, 10, 8, 6, 4, 1]
    assert [x.shape[-1] for x in maps.values()] == sides
    assert [x.shape[1] for x in maps.values()] == [20] * 7 + [10]


def test_border() -> None:
    x = torch.randn(1, 1, 5, 6)
    padded = Border(8)(x)
    assert padded.shape == (1, 1, 9, 8)
    assert torch.equal(padded[..., 2:-2, 1:-1], x)
    assert padded.abs().sum() == x.abs().sum()
    assert Border(5)(x).shape == x.shape


class TestAttentiveConvolution:
    @pytest.mark.parametrize("lifting", [True, False], ids=["lifting", "group"])
    @pytest.mark.parametrize("group", [Cyclic(1), Cyclic(4), Cyclic(8), Dihedral(1), Dihedral(4)], ids=str)
    def test_equivariance(self, group: Group, lifting: bool) -> None:
        """The attention is written for any group, not for the four rotations alone."""
        elements = () if lifting else (group.order,)
        for (height, width), size in (((6, 6), 3), ((7, 7), 4), ((5, 8), 3)):
            layer = AttentiveConv(group, 2, 3, size, padding=1, lifting=lifting).double()
            x = torch.randn(2, 2, *elements, height, width, dtype=torch.float64)
            assert_equivariant(layer, x, group, tolerance=1e-12)

    def test_wrong_attention_is_caught(self) -> None:
        x = torch.randn(2, 2, 8, 6, 6, dtype=torch.float64)
        for part in ("channels", "positions"):
            layer = AttentiveConv(Dihedral(4), 2, 3).double()
            getattr(layer, part).bank.relative = layer.group.product
            with pytest.raises(AssertionError, match="not equivariant"):
                assert_equivariant(layer, x, layer.group, tolerance=1e-4)

    def test_without_scores_it_is_the_convolution(self) -> None:
        """Scores of zero are attentions of 1/2 by 1/2, and 3/4 is left."""
        attentive, plain = AttentiveConv(Cyclic(4), 3, 5).double(), GroupConv(Cyclic(4), 3, 5).double()
        nn.init.zeros_(attentive.channels.excite)
        nn.init.zeros_(attentive.positions.weight)
        plain.load_state_dict({"weight": attentive.weight})
        x = torch.randn(2, 3, 4, 6, 7, dtype=torch.float64)
        torch.testing.assert_close(attentive(x), 0.75 * plain(x), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("score", [-1e3, 1e3])
    def test_attention_leaves_out_what_it_marks(self, score: float) -> None:
        """All of it marked, nothing comes through; none of it, all does. The image is positive, and so are filters."""
        attentive, plain = AttentiveConv(Cyclic(4), 1, 2, lifting=True), GroupConv(Cyclic(4), 1, 2, lifting=True)
        nn.init.constant_(attentive.weight, 0.1)
        nn.init.constant_(attentive.channels.squeeze, 1.0)
        nn.init.constant_(attentive.channels.excite, 1e3)
        nn.init.constant_(attentive.positions.weight, score)
        plain.load_state_dict({"weight": attentive.weight})
        x = torch.rand(1, 1, 6, 6) + 0.5
        torch.testing.assert_close(attentive(x), plain(x) if score < 0 else torch.zeros(1, 2, 4, 4, 4))

    def test_gradients(self) -> None:
        layer = AttentiveConv(Cyclic(4), 2, 1).double()
        x = torch.randn(1, 2, 4, 3, 4, dtype=torch.float64, requires_grad=True)
        names, parameters = zip(*layer.named_parameters(), strict=True)

        def convolve(x: Tensor, *values: Tensor) -> Tensor:
            out: Tensor = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))
            return out

        assert torch.autograd.gradcheck(convolve, (x, *parameters), fast_mode=True)


class TestConditionalPositions:
    def test_they_are_all_that_tells_patches_apart(self) -> None:
        """Without them the logits do not change when patches change places."""
        model = gevit.create_model("cpvt").double().eval()
        x = torch.randn(1, 1, 28, 28, dtype=torch.float64)
        swapped = x.clone()
        swapped[..., :4, :4], swapped[..., 8:12, 16:20] = x[..., 8:12, 16:20], x[..., :4, :4]
        assert (model(x) - model(swapped)).abs().max() > 1e-4
        del model.body["positions"]
        torch.testing.assert_close(model(x), model(swapped), rtol=1e-12, atol=1e-12)

    @pytest.mark.usefixtures("unchecked_shapes")
    def test_smallest_image(self) -> None:
        with pytest.raises(ValueError, match="images must be at least 4x4 for this network, got 3x9"):
            gevit.create_model("cpvt").eval()(torch.zeros(1, 1, 3, 9))
