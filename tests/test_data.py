from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from gevit.data import list_datasets, load_digits, normalize_digits, open_dataset
from gevit.data.catalog import prepare
from gevit.data.dataset import DataSet, MemorySplit, Split, is_other_data, stratified_split
from gevit.data.preview import save_sheet
from gevit.data.rotation import rotate_digits
from gevit.data.rotmnist import write_splits
from gevit.data.storage import data_root, record_files


def memory_split(count: int = 6, dtype: torch.dtype = torch.uint8) -> MemorySplit:
    images = torch.arange(count * 4).reshape(count, 1, 2, 2).to(dtype)
    return MemorySplit(images, torch.arange(count) % 2)


def data_set(train: MemorySplit, classes: tuple[str, ...] = ("a", "b")) -> DataSet:
    other = memory_split()
    return DataSet("toy", classes, 1, 2, (0.5,), (0.25,), train, other, other, "made up")


def test_digits() -> None:
    images, labels = load_digits()
    assert images.dtype == torch.uint8
    assert labels.bincount().tolist() == [500] * 10
    normal = normalize_digits(images)
    assert abs(normal.mean().item()) < 0.02
    assert abs(normal.std().item() - 1) < 0.02


def test_digits_are_split_evenly_and_always_the_same() -> None:
    first, second = open_dataset("digits"), open_dataset("digits", seed=5)
    for name, size in (("train", 4000), ("valid", 500), ("test", 500)):
        one, two = first.split(name), second.split(name)
        assert one.labels.bincount().tolist() == [size // 10] * 10
        assert (one.labels[:-1] != one.labels[1:]).float().mean() > 0.8, "classes are mixed, not sorted"
        everything = torch.arange(size)
        assert torch.equal(one.labels, two.labels)
        assert torch.equal(one.images(everything), two.images(everything))


def test_digits_are_turned_and_no_digit_is_in_two_splits() -> None:
    images, _ = load_digits()
    angles = np.random.default_rng(0).uniform(0, 360, len(images))
    assert angles.min() < 1
    assert angles.max() > 359
    turned = {image.tobytes(): index for index, image in enumerate(rotate_digits(images[:, 0].numpy(), angles))}
    dataset = open_dataset("digits")
    found = [
        turned[image.mul(255).round().byte().numpy().tobytes()]
        for split in (dataset.train, dataset.valid, dataset.test)
        for image in split.images(torch.arange(len(split)))
    ]
    assert sorted(found) == list(range(5000))


def test_turning_moves_quarter_turns_exactly_and_keeps_the_background_black() -> None:
    images, _ = load_digits()
    pictures = images[::500, 0].numpy()
    quarter = rotate_digits(pictures, np.full(10, 90.0))
    np.testing.assert_array_equal(quarter, np.rot90(pictures, axes=(1, 2)))
    assert not rotate_digits(pictures, np.full(10, 33.0))[:, 0, 0].any()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
def test_images_come_in_any_order_with_repeats_as_fractions(dtype: torch.dtype) -> None:
    split = memory_split(dtype=dtype)
    images = split.images(torch.tensor([5, 0, 5]))
    assert images.dtype == torch.float32
    expected = torch.tensor([[20.0, 21, 22, 23], [0, 1, 2, 3], [20, 21, 22, 23]]) / torch.iinfo(dtype).max
    assert torch.equal(images.flatten(1), expected)
    assert split.images(torch.tensor([], dtype=torch.int64)).shape == (0, 1, 2, 2)


def test_a_subset_of_a_subset_is_a_split() -> None:
    split = memory_split()
    part = split.subset(torch.tensor([4, 2, 3])).subset(torch.tensor([2, 0]))
    assert len(part) == 2
    assert part.labels.tolist() == [1, 0]
    assert torch.equal(part.images(torch.tensor([0, 1])), split.images(torch.tensor([3, 4])))


@pytest.mark.usefixtures("unchecked_shapes")
def test_indices_must_be_of_the_split() -> None:
    with pytest.raises(IndexError, match="index 6 is outside this split of 6 images"):
        memory_split().images(torch.tensor([0, 6]))
    with pytest.raises(IndexError, match="index -1"):
        memory_split().subset(torch.tensor([0, 1])).images(torch.tensor([-1]))
    with pytest.raises(ValueError, match="one axis of integers"):
        memory_split().images(torch.tensor([[0]]))


def test_normalize() -> None:
    images = torch.rand(2, 1, 2, 2, dtype=torch.float64)
    assert torch.equal(data_set(memory_split()).normalize(images), (images - 0.5) / 0.25)


def test_labels_must_be_of_the_classes() -> None:
    wrong = MemorySplit(torch.zeros(5, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0, 7, 9]))
    with pytest.raises(ValueError, match=r"image 3 of the train split of toy has label 7, expected 0 to 1 \(2 of 5"):
        data_set(wrong)
    with pytest.raises(ValueError, match="train split of toy has no images"):
        data_set(memory_split(0))
    with pytest.raises(ValueError, match="unknown split 'tests'.*did you mean 'test'"):
        data_set(memory_split()).split("tests")


def test_the_digest_follows_what_is_learned_and_not_the_words() -> None:
    data = data_set(memory_split())
    renamed = dataclasses.replace(data, name="another name", note="other words", drawn=("train",), whole=False)
    assert renamed.digest == data.digest
    plain = memory_split()
    pixels = plain.images(torch.arange(6)).mul(255).byte()
    others = {
        "other pixels": {"train": MemorySplit(pixels.flip(-1), plain.labels)},
        "labels exchanged": {"train": MemorySplit(pixels, plain.labels.flip(0))},
        "other test images": {"test": MemorySplit(pixels.flip(0), plain.labels)},
        "a part of the test images": {"test": plain.subset(torch.tensor([0, 1]))},
        "another part of them": {"test": plain.subset(torch.tensor([0, 3]))},
        "other names of classes": {"classes": ("b", "a")},
        "another normalisation": {"mean": (0.4,)},
    }
    digests = {what: dataclasses.replace(data, **change).digest for what, change in others.items()}  # type: ignore[arg-type]
    digests |= {"another size": data.resized(4).digest}
    assert len({data.digest, *digests.values()}) == 1 + len(digests)
    assert all(is_other_data(data.digest, digest) for digest in digests.values())


def test_digests_of_earlier_versions_say_nothing() -> None:
    digest = data_set(memory_split()).digest
    assert not is_other_data(digest, "0" * 64)
    assert not is_other_data("0" * 64, digest)
    assert not is_other_data(None, digest)
    assert is_other_data("0" * 64, "1" * 64), "but they can be compared with one another"


def test_a_split_of_any_kind_has_a_fingerprint() -> None:
    class Shaded(Split):
        labels = torch.arange(130) % 2

        def __init__(self, last: float) -> None:
            self.last = last

        def _read(self, indices: Tensor) -> Tensor:
            return torch.where(indices < 129, 0.5, self.last)[:, None, None, None].expand(-1, 1, 2, 2)

    assert Shaded(0.5).fingerprint() == Shaded(0.5).fingerprint() != Shaded(0.25).fingerprint()


def test_stratified_split_keeps_the_classes_in_proportion() -> None:
    labels = torch.tensor([0] * 100 + [1] * 50 + [2] * 4)
    parts = stratified_split(labels, (0.1, 0.2), seed=3)
    assert [labels[part].bincount().tolist() for part in parts] == [[70, 35, 2], [10, 5, 1], [20, 10, 1]]
    assert sorted(torch.cat(parts).tolist()) == list(range(154))
    again, other = stratified_split(labels, (0.1, 0.2), seed=3), stratified_split(labels, (0.1, 0.2), seed=4)
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))
    assert not torch.equal(parts[0], other[0])


def test_names() -> None:
    assert {"digits", "digits-upright", "rotmnist", "rotmnist-rebuilt", "cifar10", "pcam"} <= set(list_datasets())
    with pytest.raises(ValueError, match="unknown data set 'rotminst'.*did you mean 'rotmnist'"):
        open_dataset("rotminst")
    with pytest.raises(FileNotFoundError, match="no folder or archive nowhere/at_all"):
        open_dataset("nowhere/at_all")
    with pytest.raises(FileNotFoundError, match="no folder or archive nowhere"):
        open_dataset("nowhere/")
    with pytest.raises(ValueError, match="is no folder, and no archive of a known kind"):
        open_dataset(__file__)


def test_a_named_set_is_scaled_but_keeps_its_channels() -> None:
    whole = open_dataset("digits", image_size=28, channels=1)
    assert whole.image_size == 28
    small = open_dataset("digits", image_size=14)
    some = torch.arange(20)
    assert small.image_size == 14
    assert small.test.images(some).shape == (20, 1, 14, 14)
    assert torch.equal(small.test.labels, whole.test.labels)
    # Scaling by one half, with antialiasing, keeps how bright an image is (but for its border, which is black).
    means = [dataset.test.images(some).mean((1, 2, 3)) for dataset in (small, whole)]
    torch.testing.assert_close(*means, atol=2e-3, rtol=0)
    assert small.note.endswith("scaled from 28x28 to 14x14")
    with pytest.raises(ValueError, match="image_size must be a positive integer, got 0"):
        open_dataset("digits", image_size=0)
    with pytest.raises(ValueError, match="digits has channels 1, got 3"):
        open_dataset("digits", channels=3)


@pytest.mark.parametrize("name", ["rotmnist", "rotmnist-rebuilt", "cifar10", "pcam"])
def test_missing_data_says_how_to_get_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"gevit data prepare {name} --data-root {tmp_path}$"):
        open_dataset(name, tmp_path)


def test_what_comes_with_the_package_is_not_taken_from_a_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="digits comes with gevit and is not taken from a file; leave out --file"):
        prepare("digits", tmp_path, tmp_path / "digits.npz")


def test_commands_can_be_copied_from_what_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"--data-root '{tmp_path}/a b'$"):
        open_dataset("cifar10", tmp_path / "a b")


def test_where_data_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEVIT_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert data_root("elsewhere") == Path("elsewhere")
    monkeypatch.delenv("GEVIT_DATA")
    assert data_root() == Path.home() / ".cache" / "gevit"


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: record_files(folder, "digits", []),
        lambda folder: write_splits(folder / "a.npz", np.zeros((3, 2, 2), np.uint8), np.zeros(3, np.int64), (1, 1)),
        lambda folder: save_sheet(Image.new("L", (2, 2)), folder / "sheet.png"),
    ],
)
def test_places_that_cannot_be_written_are_named(write: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=rf"cannot write {tmp_path}/file/\S+: "):
        write(tmp_path / "file")


def test_without_an_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"needs pillow .*pip install 'gevit\[train\]'"):
        open_dataset("digits")
