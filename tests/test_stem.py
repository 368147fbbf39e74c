"""Networks with a stem of group convolutions, and what they are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gevit
from gevit.equivariance import assert_equivariant, measure
from gevit.equivariance.comparison import compare_translation
from gevit.groups import Cyclic, Dihedral, Group
from gevit.layers import Downsample, GroupAttention, PreNormBlock, Restriction, StochasticDepth, Upsample
from gevit.models import GroupTransformer
from gevit.models.info import ModelInfo
from gevit.models.registry import SELF_ATTENTION

LARGEST = {"nano": 45_000, "tiny": 500_000, "small": 3_000_000}


def trained_a_little(name: str, encoding: str = "ge", preset: str = "nano", restrict: str | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = gevit.create_model(name, preset, in_channels=1, encoding=encoding, restrict=restrict).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        images, labels = torch.randn(4, 1, 13, 13, dtype=torch.float64), torch.randint(10, (4,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.eval()


@pytest.mark.parametrize("preset", LARGEST)
@pytest.mark.parametrize("name", SELF_ATTENTION)
def test_presets_are_small_for_every_group(name: str, preset: str) -> None:
    assert sum(p.numel() for p in gevit.create_model(name, preset).parameters()) <= LARGEST[preset]


@pytest.mark.parametrize("encoding", ["ge", "relative"])
@pytest.mark.parametrize("name", ["r4_sa", "r8_sa", "d1_sa", "d4_sa"])
def test_nano_is_equivariant_for_every_size(name: str, encoding: str) -> None:
    model = trained_a_little(name, encoding)
    for size in ((13, 17), (8, 8), (1, 1)):
        x = torch.randn(2, 1, *size, dtype=torch.float64)
        for module in (model, model.forward_features):
            assert_equivariant(module, x, SELF_ATTENTION[name], tolerance=1e-10)  # type: ignore[arg-type]


@pytest.mark.parametrize("preset", ["tiny", "small"])
@pytest.mark.parametrize("name", ["r8_sa", "d4_sa"])
def test_larger_presets_are_equivariant_for_every_size(name: str, preset: str) -> None:
    model = trained_a_little(name, preset=preset)
    for size in ((21, 34), (1, 2)):
        x = torch.randn(1, 1, *size, dtype=torch.float64)
        for module in (model, model.forward_features):
            assert_equivariant(module, x, SELF_ATTENTION[name], tolerance=1e-10)  # type: ignore[arg-type]


@pytest.mark.parametrize("preset", LARGEST)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("r4_sa", {}),
        ("r8_sa", {"neighborhood": 3}),
        ("d1_sa", {"encoding": "relative"}),
        ("d4_sa", {}),
        ("d4_sa", {"restrict": "c4", "initialisation": "paper"}),
    ],
)
def test_untrained_networks_are_equivariant_in_float32(name: str, options: dict[str, Any], preset: str) -> None:
    """Batch norms have seen nothing yet: signals that grow from layer to layer would saturate the softmax."""
    for seed, size in enumerate([(28, 28), (27, 31), (5, 3)]):
        torch.manual_seed(seed)
        model = gevit.create_model(name, preset, **options).eval()
        assert isinstance(model, GroupTransformer)
        x = torch.randn(1, model.preset.in_channels, *size)
        assert model(x).abs().max() < 30
        for module in (model, model.forward_features):
            assert_equivariant(module, x, model.group, tolerance=1e-5)


def test_each_stage_has_its_own_encoding_and_neighbourhood() -> None:
    model = gevit.create_model("d4_sa", "small", neighborhood=(1, 1, 3, 5), encoding=("ge", "ge", "relative", "ge"))
    layers = [layer for layer in model.modules() if isinstance(layer, GroupAttention)]
    assert [layer.neighborhood for layer in layers] == [3, 3, 5, 5, 5, 5]
    assert [layer.encoding for layer in layers] == ["relative"] * 2 + ["ge"] * 4
    with pytest.raises(ValueError, match="each of the 4 stages"):
        gevit.create_model("d4_sa", "small", neighborhood=(3, 5))


class TestRestriction:
    def test_a_signal_on_the_group_is_one_on_the_subgroup(self) -> None:
        """Restriction commutes with the subgroup, whatever the pair, and loses nothing."""
        for group, subgroup in (
            (Dihedral(4), Cyclic(4)),
            (Dihedral(4), Dihedral(2)),
            (Dihedral(4), Dihedral(1)),
            (Cyclic(8), Cyclic(4)),
            (Cyclic(4), Cyclic(1)),
            (Cyclic(4), Cyclic(4)),
        ):
            restriction = Restriction(group, subgroup)
            signal = torch.randn(1, 3, group.order, 4, 6)
            for own, element in enumerate(group.elements_of(subgroup).tolist()):
                if group.is_exact(element):
                    found = restriction(group.act_on_signal(signal, element))
                    assert found.equal(subgroup.act_on_signal(restriction(signal), own))
            assert restriction(signal).flatten().sort().values.equal(signal.flatten().sort().values)

    @pytest.mark.parametrize(
        ("preset", "restrict"), [("nano", "c4"), ("tiny", "c4@2"), ("rotmnist", "r4"), ("nano", "c2")]
    )
    def test_equivariant_to_the_subgroup_and_not_to_the_group(self, preset: str, restrict: str) -> None:
        model = (
            trained_a_little("d4_sa", preset=preset, restrict=restrict)
            if preset != "rotmnist"
            else (gevit.create_model("d4_sa", preset, restrict=restrict).double().eval())
        )
        x = torch.randn(1, 1, 22, 24, dtype=torch.float64)
        for module in (model, model.forward_features):
            assert_equivariant(module, x, model.group, tolerance=1e-10)  # type: ignore[arg-type]
        assert measure(model, x, Dihedral(4)).worst > 1e-6

    def test_it_is_part_of_what_is_saved(self, tmp_path: Path) -> None:
        model = gevit.create_model("d4_sa", "nano", restrict="c4", neighborhood=(3, 5)).eval()
        info = ModelInfo(
            name="d4_sa",
            preset="nano",
            in_channels=1,
            num_classes=10,
            neighborhood=(3, 5),
            restrict="c4",
            classes=tuple("0123456789"),
            image_size=28,
            mean=(0.1,),
            std=(0.3,),
        )
        gevit.save(model, info, tmp_path / "model.safetensors")
        again = gevit.load(tmp_path / "model.safetensors")
        x = torch.randn(2, 1, 9, 12)
        assert again(x).equal(model(x))
        assert again.info == info

    @pytest.mark.parametrize("restrict", ["c3", "d8", "c4@0", "c4@3", "c4@", "four"])
    def test_what_is_no_restriction_is_refused(self, restrict: str) -> None:
        with pytest.raises(ValueError, match="subgroup|stage|group"):
            gevit.create_model("d4_sa", "nano", restrict=restrict)


class TestStochasticDepth:
    def test_keeps_the_mean_and_drops_images_whole(self) -> None:
        path = StochasticDepth(0.25)
        out = path(torch.ones(20_000, 2, 1, 3, 1))
        assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
        assert (out == out[:, :1, :, :1]).all()
        assert out.mean().item() == pytest.approx(1, abs=0.02)
        assert path.eval()(out).equal(out)

    def test_rises_from_the_first_block_to_the_last(self) -> None:
        model = gevit.create_model("z2_sa", "tiny")
        assert isinstance(model, GroupTransformer)
        model.set_drop_path(0.3)
        rates = [layer.rate for layer in model.modules() if isinstance(layer, StochasticDepth)]
        assert rates[0] == 0
        assert rates[-1] == pytest.approx(0.3)
        assert sorted(rates) == rates


def test_what_is_not_equivariant_is_found() -> None:
    assert measure(trained_a_little("r4_sa", "gsa"), torch.randn(1, 1, 13, 13).double(), Cyclic(4)).worst > 1e-6
    assert measure(trained_a_little("z2_sa", "ge"), torch.randn(1, 1, 13, 13).double(), Cyclic(4)).worst > 1e-3


@pytest.mark.parametrize("backend", ["reference", "factored"])
def test_backends_agree_on_nano(backend: str) -> None:
    model = gevit.create_model("d4_sa", "nano").eval()
    other = gevit.create_model("d4_sa", "nano", backend=backend).eval()
    other.load_state_dict(model.state_dict())
    x = torch.randn(1, 1, 14, 15)
    expected = model(x)
    assert (other(x) - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("group", [Cyclic(4), Cyclic(8), Dihedral(4)], ids=str)
@pytest.mark.parametrize("size", [(8, 8), (7, 7), (6, 9), (1, 4)])
def test_downsampling_commutes_with_the_group_and_keeps_constants(group: Group, size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, group.order, *size, dtype=torch.float64)
    assert_equivariant(Downsample(), x, group, tolerance=1e-12)
    halves = Downsample()(torch.ones_like(x))
    assert halves.shape[-2:] == tuple((side + 1) // 2 for side in size)
    torch.testing.assert_close(halves, torch.ones_like(halves))


def test_downsampling_removes_what_half_the_pixels_cannot_show() -> None:
    stripes = torch.tensor([1.0, -1.0]).repeat(8).expand(1, 1, 1, 16, 16)
    assert Downsample()(stripes)[..., 1:-1, 1:-1].abs().max() < 1e-6
    assert stripes[..., ::2, ::2].abs().min() == 1


def test_translations_of_a_stem() -> None:
    model = gevit.create_model("r4_sa", "nano", neighborhood=3).eval()
    assert compare_translation(model, torch.randn(1, 20, 20), "stage2_block2").error.worst < 1e-4


@pytest.mark.parametrize("size", [(8, 8), (7, 9), (8, 7), (2, 5), (1, 1), (1, 6)])
def test_upsampling_is_equivariant_and_puts_points_where_they_were(size: tuple[int, int]) -> None:
    group = Dihedral(4)

    def there_and_back(x: Tensor) -> Tensor:
        back: Tensor = Upsample()(Downsample()(x), x.shape[-2:])
        return back

    x = torch.randn(2, 3, 8, *size, dtype=torch.float64)
    assert_equivariant(there_and_back, x, group, tolerance=1e-12)
    # A blur keeps a slope away from the border, so it must come back where it was.
    slope = torch.arange(12.0).expand(1, 1, 1, 12, 12)
    for even in (slope, slope[..., :11, :11]):
        back = there_and_back(even)
        torch.testing.assert_close(back[..., 3:-3], even[..., 3:-3])
    with pytest.raises(ValueError, match="rounded up"):
        Upsample()(x, (2 * size[0] + 1, size[1]))


def test_block_is_equivariant_in_training_and_evaluation() -> None:
    group = Dihedral(4)
    block = PreNormBlock(gevit.GroupAttention(group, 12, 12, heads=2, neighborhood=3)).double()
    x = torch.randn(2, 12, 8, 5, 6, dtype=torch.float64)
    assert_equivariant(block.train(), x, group)
    assert_equivariant(block.eval(), x, group)


class TestStartsLikeAConvolution:
    @staticmethod
    def scores(layer: gevit.GroupAttention | gevit.LiftingAttention) -> tuple[Tensor, Tensor]:
        """Scores of every offset (as output element 0 sees it) and of every element, for each head, without content."""
        positions = layer.positions(9, 9)
        bias = layer.query.bias.view(layer.head_channels, layer.heads) / layer.in_channels**0.5
        parts = positions.space.shape[1]
        element = positions.element @ bias[parts:] if positions.element.numel() else bias.new_empty(0, layer.heads)
        return positions.space[positions.offset_index[0]] @ bias[:parts], element

    @pytest.mark.parametrize("neighborhood", [3, 5, 7])
    @pytest.mark.parametrize("group", [Cyclic(1), Cyclic(4), Dihedral(4)], ids=str)
    def test_each_head_prefers_one_tap(self, group: Group, neighborhood: int) -> None:
        layer = gevit.GroupAttention(group, 24, 24, 5, neighborhood, initialisation="convolution")
        offsets, elements = self.scores(layer)
        best = offsets.argmax(0)
        centre = neighborhood // 2
        rows, columns = best // neighborhood - centre, best % neighborhood - centre
        assert rows.abs().max() <= 1
        assert columns.abs().max() <= 1
        margins = offsets.topk(2, dim=0).values
        assert (margins[0] - margins[1]).min() > 1  # the nearest pixels are e^-1 as likely or less
        if group.order > 1:
            top = elements.topk(2, dim=0).values
            # Where a head has a channel for each element they do not disturb each other.
            assert (top[0] - top[1]).min() > (0.5 if group.order <= layer.positions(9, 9).element.shape[1] else 0)

    @pytest.mark.parametrize("group", [Cyclic(1), Cyclic(4), Dihedral(4)], ids=str)
    def test_so_does_each_head_of_lifting(self, group: Group) -> None:
        layer = gevit.LiftingAttention(group, 3, 8, heads=9, neighborhood=5, initialisation="convolution")
        offsets, _ = self.scores(layer)
        assert offsets.argmax(0).sort().values.tolist() == [5 * r + c for r in (1, 2, 3) for c in (1, 2, 3)]
        margins = offsets.topk(2, dim=0).values
        assert (margins[0] - margins[1]).min() > 1
        assert_equivariant(layer.double(), torch.randn(1, 3, 6, 7, dtype=torch.float64), group)

    def test_an_architecture_of_the_paper_can_start_so(self) -> None:
        for preset, default in (("rotmnist", "paper"), ("nano", "convolution")):
            states = []
            for initialisation in (None, "paper", "convolution"):
                torch.manual_seed(0)
                states.append(gevit.create_model("r4_sa", preset, initialisation=initialisation).state_dict())
            same = [
                all(torch.equal(x, y) for x, y in zip(states[0].values(), state.values(), strict=True))
                for state in states
            ]
            assert same == [True, default == "paper", default == "convolution"]
        with pytest.raises(ValueError, match="leave one of them out"):
            gevit.create_model("r4_sa", pretrained=True, initialisation="convolution")

    def test_heads_differ_and_the_seed_decides(self) -> None:
        layers = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            layers.append(gevit.GroupAttention(Cyclic(4), 12, 12, heads=6, initialisation="convolution"))
        assert torch.equal(layers[0].query.bias, layers[1].query.bias)
        assert not torch.equal(layers[0].query.bias, layers[2].query.bias)
        offsets, elements = self.scores(layers[0])
        assert len({(int(a), int(b)) for a, b in zip(offsets.argmax(0), elements.argmax(0), strict=True)}) > 3

    def test_global_attention_starts_as_in_the_paper(self) -> None:
        layers = []
        for initialisation in ("paper", "convolution"):
            torch.manual_seed(0)
            layers.append(gevit.GroupAttention(Cyclic(4), 12, 12, neighborhood=None, initialisation=initialisation))
        assert torch.equal(layers[0].query.bias, layers[1].query.bias)

    def test_too_few_channels_are_refused(self) -> None:
        with pytest.raises(ValueError, match="at least 12"):
            gevit.GroupAttention(Cyclic(4), 8, 8, initialisation="convolution")
        with pytest.raises(ValueError, match="at least 8"):
            gevit.LiftingAttention(Cyclic(4), 1, 4, initialisation="convolution")
        with pytest.raises(ValueError, match="unknown initialisation"):
            gevit.GroupAttention(Cyclic(4), 12, 12, initialisation="xavier")


def test_baselines_have_no_stem_preset() -> None:
    with pytest.raises(ValueError, match="self-attention"):
        gevit.create_model("p4_cnn", "nano")
