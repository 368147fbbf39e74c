"""The batches of a run: their order, what they draw of each class, and what happens to images at random."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gevit.data import DataSet, Split
from gevit.data.dataset import MemorySplit
from gevit.data.rotation import rotate_each
from gevit.training.augmentation import Augmentation, restain
from gevit.training.batches import StepBatches, balanced_order, class_weights
from gevit.training.stopping import Interrupt
from tests.running import few_digits, make_run, rows


@pytest.fixture(scope="module")
def data() -> DataSet:
    return few_digits()


class Numbered(MemorySplit):
    """Images that show their own number."""

    def __init__(self, count: int) -> None:
        numbers = torch.arange(count)
        super().__init__(numbers.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2), numbers % 10)


def numbers(batch: tuple[torch.Tensor, torch.Tensor]) -> list[int]:
    return (batch[0][:, 0, 0, 0] * 255).round().int().tolist()


def batches_of(split: Split, **settings: Any) -> StepBatches:
    return StepBatches(split, lambda images: images, **{"batch_size": 4, "seed": 0, **settings})


EVERYTHING = Augmentation(rotate=True, flip=True, brightness=0.2, contrast=0.2, stain=0.1)


def test_an_epoch_shows_each_image_at_most_once_in_an_order_of_its_own() -> None:
    batches = batches_of(Numbered(22))
    assert batches.steps_per_epoch == 5
    epochs = [[n for step in range(5 * e, 5 * e + 5) for n in numbers(batches[step])] for e in range(3)]
    assert all(len(set(epoch)) == 20 for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert set().union(*epochs) == set(range(22))


def test_labels_belong_to_their_images() -> None:
    batch = batches_of(Numbered(22))[3]
    assert batch[1].tolist() == [number % 10 for number in numbers(batch)]


@pytest.mark.parametrize("balanced", [False, True])
def test_a_step_is_a_function_of_seed_and_step_alone(data: DataSet, balanced: bool) -> None:
    once, again = (batches_of(data.train, augmentation=EVERYTHING, balanced=balanced) for _ in range(2))
    forwards = [once[step] for step in range(6)]
    backwards = [again[step] for step in reversed(range(6))][::-1]
    for (images, labels), (same_images, same_labels) in zip(forwards, backwards, strict=True):
        assert torch.equal(images, same_images)
        assert torch.equal(labels, same_labels)
    assert not torch.equal(once[0][0], batches_of(data.train, augmentation=EVERYTHING, balanced=balanced, seed=1)[0][0])


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("world_size", [2, 4])
def test_all_shares_together_are_the_batch_of_one_process(data: DataSet, world_size: int, balanced: bool) -> None:
    options = {"augmentation": EVERYTHING, "balanced": balanced}
    whole = batches_of(data.train, **options)
    shares = [batches_of(data.train, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    for step in range(4):
        images, labels = (torch.cat(parts) for parts in zip(*(share[step] for share in shares), strict=True))
        torch.testing.assert_close(images, whole[step][0], rtol=0, atol=1e-6)
        assert torch.equal(labels, whole[step][1])


def test_flip_mirrors_about_half_of_the_images() -> None:
    pixels = torch.zeros(200, 1, 2, 2, dtype=torch.uint8)
    pixels[..., 0] = 255
    images, _ = batches_of(
        MemorySplit(pixels, torch.zeros(200).long()), batch_size=200, augmentation=Augmentation(flip=True)
    )[0]
    mirrored = images[:, 0, 0, 1] == 1
    assert torch.equal(images[mirrored], images[~mirrored][:1].flip(-1).expand_as(images[mirrored]))
    assert 70 < int(mirrored.sum()) < 130


# Unequal classes


UNEQUAL = torch.tensor([0] * 50 + [1] * 9 + [3] * 1 + [4] * 3)  # and no image of class 2


def test_balanced_epochs_have_as_many_images_of_every_class() -> None:
    seen = torch.zeros(len(UNEQUAL), dtype=torch.int64)
    for seed in range(60):
        order = balanced_order(UNEQUAL, torch.Generator().manual_seed(seed))
        assert len(order) == len(UNEQUAL)
        counts = UNEQUAL[order].bincount(minlength=5)
        assert sorted(counts.tolist()) == [0, 15, 16, 16, 16]
        times = order.bincount(minlength=len(UNEQUAL))
        for label in UNEQUAL.unique():  # images of a class come equally often, give or take one
            of_class = times[label == UNEQUAL]
            assert of_class.max() - of_class.min() <= 1
        seen += times
    assert seen.min() > 0
    assert not torch.equal(order, order.sort().values)


def test_sampling_reaches_the_batches_of_a_run(tmp_path: Path, data: DataSet) -> None:
    labels = torch.tensor([0] * 10 + [1] * 2)
    unequal = dataclasses.replace(data, train=MemorySplit(torch.zeros(12, 1, 28, 28, dtype=torch.uint8), labels))
    drawn = {balance: make_run(tmp_path, unequal, balance=balance, batch_size=12).batches[0][1].sum() for balance in
             ("none", "weights", "sampling")}  # fmt: skip
    assert drawn == {"none": 2, "weights": 2, "sampling": 6}


def test_weights_are_in_inverse_proportion_and_one_on_average() -> None:
    weights = class_weights(UNEQUAL, 5)
    assert float(weights[UNEQUAL].mean()) == pytest.approx(1.0)
    counts = UNEQUAL.bincount(minlength=5)
    assert (weights * counts)[counts > 0].tolist() == pytest.approx([len(UNEQUAL) / 4] * 4)
    assert weights.isfinite().all()


@pytest.mark.parametrize("accumulate", [1, 3])
def test_weights_reach_the_loss_and_its_parts_add_up(tmp_path: Path, data: DataSet, accumulate: int) -> None:
    settings = {"model": "z2_sa", "neighborhood": 3, "dropout": 0.0, "balance": "weights", "label_smoothing": 0.1}
    run = make_run(tmp_path, data, batch_size=12, accumulate=accumulate, **settings)
    images, labels = run.batches[0]
    with torch.no_grad():
        losses = F.cross_entropy(run.state.model(images), labels, label_smoothing=0.1, reduction="none")
    counts = data.train.labels.bincount(minlength=10)
    expected = sum(float(loss) / int(counts[label]) for loss, label in zip(losses, labels, strict=True))
    run.fit(Interrupt())
    present = int((counts > 0).sum())
    assert float(rows(tmp_path / "steps.csv")[0]["loss"]) == pytest.approx(expected / present, rel=1e-5)


# Light and colour


def augmented(images: torch.Tensor, **strengths: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return Augmentation(**strengths)(images, slice(None), len(images), generator)


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("strengths", [{"brightness": 0.9}, {"contrast": 0.9}, {"stain": 0.9}])
def test_every_image_is_changed_in_its_own_way_and_stays_in_range(strengths: dict[str, float], channels: int) -> None:
    images = torch.rand(1, channels, 6, 6).expand(20, -1, -1, -1).clone()
    images[:, :, 0, 0], images[:, :, 0, 1] = 0.0, 1.0
    changed = augmented(images, **strengths)
    assert changed.isfinite().all()
    assert changed.min() >= 0
    assert changed.max() <= 1
    assert len(changed.flatten(1).unique(dim=0)) == len(changed)


def test_brightness_and_contrast_are_factors_within_their_strength() -> None:
    images = 0.4 + 0.2 * torch.rand(300, 3, 4, 4)
    factors = augmented(images, brightness=0.3) / images
    torch.testing.assert_close(factors, factors[:, :1, :1, :1].expand_as(factors))
    assert 0.7 <= factors.min() < 0.75
    assert 1.25 < factors.max() <= 1.3
    mean = images.mean((1, 2, 3), keepdim=True)
    changed = augmented(images, contrast=0.3)
    torch.testing.assert_close(changed.mean((1, 2, 3), keepdim=True), mean)
    spread = changed.std((1, 2, 3)) / images.std((1, 2, 3))
    assert 0.7 <= spread.min() < 0.75
    assert 1.25 < spread.max() < 1.301


def test_floats_keep_their_range() -> None:
    """What microscopes count is not in [0, 1]."""
    counts = 200 + 700 * torch.rand(20, 2, 6, 6)
    for strengths in ({"brightness": 0.1}, {"contrast": 0.1}, {"rotate": True}):
        changed = augmented(counts, **strengths)
        assert 0.8 < (changed.std() / counts.std()) < 1.2
        assert (changed.amax((2, 3)) <= counts.amax((2, 3))).all()
    with pytest.raises(ValueError, match=r"pixels in \[0, 1\]; these images have 2.. to .*--stain"):
        augmented(counts, stain=0.1)


def test_twice_the_stain_is_the_slide_seen_through_itself() -> None:
    images = 0.1 + 0.9 * torch.rand(2, 3, 4, 4)
    twice = restain(images, torch.full((2, 3), 2.0), torch.zeros(2, 3))
    torch.testing.assert_close(twice, images**2, rtol=1e-4, atol=1e-5)
    blue = restain(torch.ones(1, 3, 1, 1), torch.ones(1, 3), torch.tensor([[1.0, 0.0, 0.0]])).flatten()  # haematoxylin
    assert blue[2] > blue[0] > blue[1]
    bands = restain(images[:, :2], torch.full((2, 2), 3.0), torch.full((2, 2), 0.5))
    torch.testing.assert_close(bands, images[:, :2] ** 3 * math.exp(-0.5), rtol=1e-4, atol=1e-5)


def test_settings_reach_the_augmentation(tmp_path: Path, data: DataSet) -> None:
    strengths: dict[str, Any] = {"rotate": True, "brightness": 0.1, "contrast": 0.2, "stain": 0.3}
    assert make_run(tmp_path, data, **strengths).batches.augmentation == Augmentation(**strengths)
    assert make_run(tmp_path, data).batches.augmentation is None


@pytest.mark.parametrize("shape", [(28, 28), (7, 7)])
@pytest.mark.parametrize("quarters", [0, 1, 2, 3])
def test_quarter_turns_are_those_of_rot90(shape: tuple[int, int], quarters: int) -> None:
    images = torch.rand(2, 3, *shape)
    turned = rotate_each(images, torch.full((2,), quarters * math.pi / 2))
    torch.testing.assert_close(turned, torch.rot90(images, quarters, (-2, -1)), rtol=0, atol=1e-5)


def test_half_a_turn_of_an_oblong_image() -> None:
    images = torch.rand(1, 1, 6, 10)
    torch.testing.assert_close(rotate_each(images, torch.tensor([math.pi])), images.flip(-1, -2), rtol=0, atol=1e-5)
