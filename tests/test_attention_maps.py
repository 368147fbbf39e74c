"""Where a pixel looks: the coefficients of `attend`, and maps of them that move with the image."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

import gevit
from gevit.attention import attention_of_pixel
from gevit.encoding import ENCODINGS
from gevit.equivariance.comparison import compare_elements
from gevit.groups import Cyclic, Dihedral
from gevit.models.attention_maps import attention_input, attention_layers, attention_maps
from tests.attention_problems import make_problem

CORNER, INNER = (0, 0), (3, 2)


@pytest.mark.parametrize("pixel", [CORNER, INNER])
@pytest.mark.parametrize("neighborhood", [3, None])
@pytest.mark.parametrize("encoding", ["lifting", *ENCODINGS])
def test_coefficients_times_values_are_the_attention_of_the_pixel(
    encoding: str, neighborhood: int | None, pixel: tuple[int, int]
) -> None:
    problem = make_problem(Dihedral(2), encoding, neighborhood=neighborhood, dtype=torch.float64)
    found = attention_of_pixel(problem.query, problem.key, problem.positions, pixel, scale=0.4)
    assert torch.allclose(found.sum((-3, -2, -1)), torch.ones(()).double())

    (row, column), side = pixel, found.shape[-1]
    values = F.pad(problem.value, [side // 2] * 4)[..., row : row + side, column : column + side]
    mixed = torch.einsum("bnvqmyx,bcnmyx->bcnv", found, values)
    assert torch.allclose(mixed, problem.attend("factored")[..., row, column], atol=1e-12)


def test_a_pixel_outside_is_refused() -> None:
    problem = make_problem()
    with pytest.raises(ValueError, match="within 6 rows and 5 columns"):
        attention_of_pixel(problem.query, problem.key, problem.positions, (6, 0), scale=1.0)


@pytest.mark.parametrize(("name", "preset"), [("r4_sa", "nano"), ("d4_sa", "rotmnist"), ("z2_sa", "nano")])
def test_maps_move_with_the_image(name: str, preset: str) -> None:
    model = gevit.create_model(name, preset, encoding="ge").double().eval()
    image = torch.randn(1, 1, 24, 24, dtype=torch.float64)
    layer = next(iter(attention_layers(model)))
    rows, columns = attention_input(model, image, layer).shape[-2:]
    maps = attention_maps(model, image, layer, (1, 2))
    assert torch.allclose(maps.sum((-2, -1)), torch.ones(()).double())
    for element in range(model.group.order):
        mark = torch.zeros(rows, columns)
        mark[1, 2] = 1
        [[row, column]] = model.group.act_on_image(mark, element).nonzero().tolist()
        found = attention_maps(model, model.group.act_on_image(image, element), layer, (row, column))
        assert torch.allclose(found, model.group.act_on_signal(maps, element), atol=1e-10)


def test_those_of_gsa_do_not() -> None:
    model = gevit.create_model("r4_sa", "nano", encoding="gsa").double().eval()
    image = torch.randn(1, 1, 28, 28, dtype=torch.float64)
    maps = attention_maps(model, image, "stage2_block2", (3, 3))
    found = attention_maps(model, model.group.act_on_image(image, 1), "stage2_block2", (3, 3))
    assert (found - model.group.act_on_signal(maps, 1)).abs().max() > 1e-3


def test_a_layer_without_attention_is_refused() -> None:
    model = gevit.create_model("r4_sa", "nano").eval()
    with pytest.raises(ValueError, match="unknown layer with attention 'stage1_conv1'; valid: stage2_block1"):
        attention_maps(model, torch.randn(1, 1, 28, 28), "stage1_conv1", (0, 0))


def test_maps_of_a_plain_model_are_held_against_any_group() -> None:
    model, image = gevit.create_model("z2_sa", "nano").eval(), torch.randn(1, 28, 28)
    still, *turned = compare_elements(model, image, range(4), group=Cyclic(4))
    assert still.error.worst == 0
    assert all(comparison.error > 0.01 for comparison in turned)


def test_threads_that_share_a_model_get_their_own_maps() -> None:
    model = gevit.create_model("z2_sa", "nano").eval()
    images = torch.randn(2, 1, 1, 12, 12)
    wanted = [attention_maps(model, image, "stage2_block2", (1, 1)) for image in images]
    with ThreadPoolExecutor(2) as pool:
        numbers = [number % 2 for number in range(60)]
        found = pool.map(lambda number: attention_maps(model, images[number], "stage2_block2", (1, 1)), numbers)
        assert all(torch.equal(maps, wanted[number]) for number, maps in zip(numbers, found, strict=True))
