from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gevit
from gevit.equivariance import EquivarianceError, assert_equivariant, measure
from gevit.equivariance.measuring import compare
from gevit.groups import Cyclic, Dihedral
from gevit.layers import GroupAttention, LiftingAttention


class Lift(nn.Module):
    """An exactly equivariant lifting of images to D4: convolution with every turned and mirrored kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = torch.randn(3, 2, 3, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        kernels = [Dihedral(4).act_on_image(self.kernel, e) for e in range(8)]
        return torch.stack([nn.functional.conv2d(x, kernel, padding=1) for kernel in kernels], 2)


IMAGES = torch.randn(2, 2, 8, 9, dtype=torch.float64)


def test_image_to_signal() -> None:
    report = measure(Lift(), IMAGES, Dihedral(4))
    assert len(report) == 8
    assert report.worst < 1e-14
    assert 0 < report[1].mean <= report[1].worst < 1e-14
    assert max(report.translations) < 1e-14


def test_image_to_logits_and_signal_to_signal() -> None:
    lift = Lift()
    assert_equivariant(lambda x: lift(x).amax((2, 3, 4)), IMAGES, Dihedral(4))
    assert_equivariant(nn.ReLU(), lift(IMAGES), Dihedral(4))
    assert_equivariant(lambda x: x.amax(2), lift(IMAGES), Dihedral(4))  # signal to image


def test_wrong_permutation_of_the_group_axis_is_seen() -> None:
    lift = Lift()
    with pytest.raises(EquivarianceError, match=r"element \d of Dihedral\(4\) \(.+\): worst relative error \d"):
        assert_equivariant(lambda x: lift(x).roll(1, 2), IMAGES, Dihedral(4))


def test_the_message_names_the_worst_element_and_the_size_of_the_error() -> None:
    """A module that is wrong for the flip alone."""

    def left_half(x: Tensor) -> Tensor:
        return x[..., :4].sum((-2, -1)) + 3 * x[..., 4:].sum((-2, -1))

    with pytest.raises(EquivarianceError) as caught:
        assert_equivariant(left_half, IMAGES[..., :8], Dihedral(1), tolerance=1e-6)
    error = measure(left_half, IMAGES[..., :8], Dihedral(1))[1]
    assert f"element 1 of Dihedral(1) (flip): worst relative error {error:.2e}" in str(caught.value)
    assert "tolerance 1e-06; 1 of 2 elements fail" in str(caught.value)


def test_nan_fails() -> None:
    with pytest.raises(EquivarianceError, match="nan"):
        assert_equivariant(lambda x: x * float("nan"), IMAGES, Cyclic(4))


@pytest.mark.parametrize("broken", range(4))
def test_nan_is_the_worst(broken: int) -> None:
    """A module that fails for one element: whichever it is, the report does not look perfect."""
    spoiled = Cyclic(4).act_on_image(IMAGES, broken)

    def module(x: Tensor) -> Tensor:
        return x * float("nan") if torch.equal(x, spoiled) else x

    report = measure(module, IMAGES, Cyclic(4), translations=[])
    assert math.isnan(report.worst)
    assert math.isnan(report.mean)


def test_translations_need_a_margin_where_borders_differ() -> None:
    padded = nn.Conv2d(2, 2, 3, padding=1).double()
    assert max(measure(padded, IMAGES, Cyclic(1), margin=0).translations) > 1e-3
    assert max(measure(padded, IMAGES, Cyclic(1), translations=[(1, 0)], margin=1).translations) < 1e-14


def test_subsampling_is_seen_by_translations() -> None:
    assert max(measure(nn.AvgPool2d(2), IMAGES[..., :8], Cyclic(4)).translations) > 1e-2


def test_dicts_and_lists_count_with_their_worst() -> None:
    good, bad = nn.Identity(), nn.Conv2d(2, 2, 3, padding=1).double()
    assert measure(lambda x: {"a": good(x)}, IMAGES, Cyclic(4)).worst == 0
    assert measure(lambda x: {"a": good(x), "b": [bad(x)]}, IMAGES, Cyclic(4)).worst > 1e-2


def test_default_tolerance_follows_the_precision() -> None:
    noise = torch.randn(8, 8)

    def nearly(x: Tensor) -> Tensor:
        return x + 1e-7 * noise.to(x)

    assert_equivariant(nearly, torch.randn(1, 1, 8, 8), Cyclic(4))
    with pytest.raises(EquivarianceError, match="tolerance 1e-10"):
        assert_equivariant(nearly, torch.randn(1, 1, 8, 8, dtype=torch.float64), Cyclic(4))


def test_report_prints_as_a_table() -> None:
    text = str(measure(nn.Identity(), IMAGES, Cyclic(8)))
    assert "45°" in text
    assert "approximate (interpolated)" in text
    assert "translation (1, 0)" in text


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="got 3 axes"):
        measure(nn.Identity(), torch.randn(2, 8, 8), Cyclic(4))
    with pytest.raises(TypeError, match=r"torch\.uint8"):
        measure(nn.Identity(), torch.zeros(1, 1, 8, 8, dtype=torch.uint8), Cyclic(4))
    with pytest.raises(ValueError, match="group axis|shape"):
        measure(nn.Identity(), torch.randn(1, 1, 4, 8, 8), Cyclic(8))
    with pytest.raises(ValueError, match=r"call module\.eval\(\) first"):
        measure(gevit.create_model("r4_sa"), torch.randn(1, 1, 28, 28), Cyclic(4))


def test_integers_without_a_sign_do_not_wrap_around() -> None:
    wrong = compare(torch.tensor([0, 2], dtype=torch.uint8), torch.tensor([1, 2], dtype=torch.uint8), "shift")
    assert wrong.worst == 0.5


@pytest.mark.parametrize("output", [IMAGES.flatten(2), IMAGES[None, None]])
def test_outputs_that_are_neither_logits_nor_images_nor_signals(output: Tensor) -> None:
    """Tokens look like images without channels, but their last axes are no rows and columns."""
    for check in (measure, assert_equivariant):
        with pytest.raises(ValueError, match=rf"a tensor of {output.ndim} axes, .*expected logits .*unflatten"):
            check(lambda x: {"logits": x.mean((2, 3)), "tokens": output}, IMAGES, Cyclic(4))


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_reports_can_be_copied_and_pickled(again: Callable[[Any], Any]) -> None:
    report = measure(nn.AvgPool2d(2), torch.randn(1, 1, 8, 8), Cyclic(8))
    assert str(again(report)) == str(report)
    for error, found in zip(report, map(again, report), strict=True):
        assert (found, vars(found)) == (error, vars(error))


def test_branches_left_out_at_random_are_dropout_too() -> None:
    model = gevit.create_model("r4_sa", preset="small").train()
    for layer in model.modules():
        if isinstance(layer, (GroupAttention, LiftingAttention)):
            layer.dropout = 0.0
        elif isinstance(layer, nn.Dropout):
            layer.p = 0.0
    with pytest.raises(ValueError, match=r"call module.eval\(\) first"):
        measure(model, torch.randn(1, 3, 32, 32), Cyclic(4))


def test_what_a_module_may_return() -> None:
    x = torch.randn(1, 1, 4, 4)
    assert measure(lambda x: {"map": x, "mask": x > 0, "none": None}, x, Cyclic(4)).worst == 0
    assert measure(lambda x: x.cumsum(-1) > 0, x, Cyclic(4)).worst == 1
    with pytest.raises(TypeError, match="returns a int, expected tensors"):
        measure(lambda x: (x, 3), x, Cyclic(4))
    with pytest.raises(ValueError, match="returns no tensor"):
        measure(lambda _: (), x, Cyclic(4))
    with pytest.raises(ValueError, match="nothing to measure"):
        measure(nn.Identity(), x[:0], Cyclic(4))
    with pytest.raises(ValueError, match="nothing to measure in an output"):
        measure(lambda x: x[:, :0], x, Cyclic(4))


def test_a_module_that_reuses_its_memory_is_not_compared_with_itself() -> None:
    weight, memory = torch.randn(2, 1, 3, 3), torch.empty(1, 2)

    def reusing(x: Tensor) -> Tensor:
        return torch.sum(nn.functional.conv2d(x, weight) ** 3, (-2, -1), out=memory)

    assert measure(reusing, torch.randn(1, 1, 8, 8), Dihedral(4)).worst > 1e-2


def test_a_module_that_works_in_place_is_judged_by_what_it_returns() -> None:
    x = torch.randn(1, 1, 8, 8)
    before = x.clone()
    assert measure(lambda x: x.mul_(2), x, Dihedral(4)).worst < 1e-6
    assert torch.equal(x, before)


def test_measuring_leaves_the_statistics_of_training_alone() -> None:
    model = gevit.create_model("d4_sa", preset="nano").train()
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(2, 1, 28, 28)
    for module in (model, model.forward_features):
        assert measure(module, x, model.group).worst < 1e-4
    assert_equivariant(model, x, model.group, tolerance=1e-4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="there is nothing to measure"):
        measure(model, x[:0], model.group)


def test_dropout_is_found_wherever_it_is() -> None:
    model = gevit.create_model("r4_sa").train()
    with pytest.raises(ValueError, match=r"call module.eval\(\) first"):
        assert_equivariant(model.forward_features, torch.randn(1, 1, 28, 28), Cyclic(4))
    mixed = nn.Sequential(nn.Identity(), nn.Dropout(0.5)).eval()
    mixed[1].train()
    with pytest.raises(ValueError, match=r"call module.eval\(\) first"):
        assert_equivariant(mixed, IMAGES, Cyclic(4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_tolerance_of_16_bits_tells_rounding_from_error(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 1, 28, 28, dtype=dtype)
    assert_equivariant(gevit.create_model("r4_sa", preset="nano").to(dtype).eval(), x, Cyclic(4))
    with pytest.raises(EquivarianceError):
        assert_equivariant(nn.Conv2d(1, 4, 3, padding=1).to(dtype), x, Cyclic(4))


def test_the_tolerance_is_that_of_the_lowest_precision() -> None:
    model = gevit.create_model("r4_sa", preset="nano").eval()
    assert_equivariant(lambda x: model(x.float()), torch.randn(1, 1, 28, 28, dtype=torch.float64), Cyclic(4))
