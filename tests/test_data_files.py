"""Reading the official files and ours: right ones, and wrong ones of every kind."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import multiprocessing
import os
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from gevit.data import cifar10, load_digits, open_dataset, pcam, rotmnist
from gevit.data.catalog import prepare, verify
from gevit.data.dataset import Split, is_other_data
from gevit.data.rotation import rotate_digits
from gevit.data.storage import Source
from tests.outside import reference

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def everything(split: Split) -> torch.Tensor:
    return (split.images(torch.arange(len(split))) * 255).round().byte()


# rotMNIST


def write_rotmnist_zip(path: Path, columns_first: bool, depth: int = 255) -> tuple[np.ndarray, np.ndarray]:
    """An archive as the official one, of 40, 10 and 50 turned digits."""
    images, labels = load_digits()
    order = np.random.default_rng(1).permutation(5000)[:100]
    pictures = rotate_digits(images[order, 0].numpy(), np.random.default_rng(2).uniform(0, 360, 100))
    stored = pictures.transpose(0, 2, 1) if columns_first else pictures
    rows = np.concatenate([stored.reshape(100, 784) / depth, labels[order, None].numpy()], axis=1)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in (("train_valid", rows[:50]), ("test", rows[50:])):
            text = io.StringIO()
            np.savetxt(text, part, fmt="%.8g")
            archive.writestr(f"mnist_all_rotation_normalized_float_{name}.amat", text.getvalue())
    return pictures, labels[order].numpy()


@pytest.fixture
def small_rotmnist(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("TRAIN", 40), ("VALID", 10), ("TEST", 50)):
        monkeypatch.setattr(rotmnist, name, size)


def official(monkeypatch: pytest.MonkeyPatch, module: Any, path: Path) -> None:
    """Let this file be the official one."""
    source: Source = module.SOURCE
    monkeypatch.setattr(module, "SOURCE", Source(source.file, md5(path), (), source.by_hand))


@pytest.mark.usefixtures("small_rotmnist")
@pytest.mark.parametrize("columns_first", [False, True])
def test_rotmnist_is_stored_upright(columns_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "mnist_rotation_new.zip"
    pictures, labels = write_rotmnist_zip(archive, columns_first)
    official(monkeypatch, rotmnist, archive)
    assert "40 train, 10 validation, 50 test" in prepare("rotmnist", tmp_path / "root", archive)
    dataset = open_dataset("rotmnist", tmp_path / "root")
    for split, part in ((dataset.train, slice(40)), (dataset.valid, slice(40, 50)), (dataset.test, slice(50, 100))):
        np.testing.assert_array_equal(everything(split)[:, 0].numpy(), pictures[part])
        np.testing.assert_array_equal(split.labels.numpy(), labels[part])
    assert {finding.status for finding in verify("rotmnist", tmp_path / "root")} == {"ok"}


@pytest.mark.usefixtures("small_rotmnist")
def test_rotmnist_keeps_pixels_between_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "mnist_rotation_new.zip"
    pictures, _ = write_rotmnist_zip(archive, columns_first=False, depth=299)
    official(monkeypatch, rotmnist, archive)
    rotmnist.prepare(tmp_path, archive)
    images = open_dataset("rotmnist", tmp_path).train.images(torch.arange(40))[:, 0].numpy()
    assert np.abs(images - pictures[:40] / 299).max() < 1e-5


@pytest.mark.usefixtures("small_rotmnist")
def test_a_wrong_rotmnist_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "mnist_rotation_new.zip"
    write_rotmnist_zip(archive, columns_first=False)
    with pytest.raises(ValueError, match=f"expected md5 {rotmnist.SOURCE.md5}, found {md5(archive)}.*truncated"):
        prepare("rotmnist", tmp_path, archive)
    with pytest.raises(FileNotFoundError, match="no file .*nothing.zip; expected mnist_rotation_new.zip"):
        prepare("rotmnist", tmp_path, tmp_path / "nothing.zip")
    archive.write_bytes(archive.read_bytes()[:-1000])
    official(monkeypatch, rotmnist, archive)
    with pytest.raises(ValueError, match="cannot read mnist_all_rotation.*mnist_rotation_new.zip: File is not a zip"):
        prepare("rotmnist", tmp_path, archive)
    assert os.listdir(tmp_path) == ["mnist_rotation_new.zip"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["0.5"] * 784, r"must have 50 rows of 784 pixels and a label, got \(50, 784\)"),
        (["0.5"] * 784 + ["x"], "could not convert string 'x'"),
        (["0.5"] * 783 + ["1.5", "3"], r"must be in \[0, 1\], got 0.5 to 1.5"),
        (["0.5"] * 783 + ["nan", "3"], r"must be in \[0, 1\], got nan"),
        (["0.5"] * 784 + ["10"], "must be 0 to 9, row 0 has 10"),
    ],
)
@pytest.mark.usefixtures("small_rotmnist")
def test_wrong_rotmnist_rows(row: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "mnist_rotation_new.zip"
    with zipfile.ZipFile(archive, "w") as content:
        content.writestr("mnist_all_rotation_normalized_float_train_valid.amat", (" ".join(row) + "\n") * 50)
    official(monkeypatch, rotmnist, archive)
    with pytest.raises(ValueError, match=message):
        rotmnist.prepare(tmp_path, archive)


# rotMNIST rebuilt


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files as those of MNIST, with 60 and 20 images, one of them not packed."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    images, labels = load_digits()
    order = np.random.default_rng(3).permutation(5000)
    sums = {}
    for part, members in (("train", order[:60]), ("t10k", order[60:80])):
        for name, header, content in (
            (f"{part}-images-idx3-ubyte", 16, images[members].numpy()),
            (f"{part}-labels-idx1-ubyte", 8, labels[members].numpy().astype(np.uint8)),
        ):
            data = bytes(header) + content.tobytes()
            sums[name] = ("", hashlib.md5(data).hexdigest())
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(
        gzip.decompress((folder / "t10k-labels-idx1-ubyte.gz").read_bytes())
    )
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    monkeypatch.setattr(rotmnist, "MNIST", sums)
    for name, size in (("TRAIN", 40), ("VALID", 10), ("TEST", 20)):
        monkeypatch.setattr(rotmnist, name, size)
    return folder


def test_rebuilt_follows_its_recipe(small_mnist: Path, tmp_path: Path) -> None:
    assert "not the official rotMNIST" in prepare("rotmnist-rebuilt", tmp_path / "a", small_mnist)
    prepare("rotmnist-rebuilt", tmp_path / "b", small_mnist)
    one, two = (open_dataset("rotmnist-rebuilt", tmp_path / root) for root in "ab")
    images, labels = load_digits()
    order = np.random.default_rng(3).permutation(5000)
    with np.load(tmp_path / "a" / "rotmnist_rebuilt.npz") as arrays:
        sources, degrees = order[arrays["src_index"]], arrays["angle_deg"].astype(np.float64)
    assert len(set(sources)) == 70
    assert one.train.labels.tolist() == labels[sources[:40]].tolist()
    expected = rotate_digits(images[sources[50:], 0].numpy(), degrees[50:]).astype(int)
    assert np.abs(everything(one.test)[:, 0].numpy() - expected).max() <= 1
    for split in ("train", "valid", "test"):
        assert torch.equal(everything(one.split(split)), everything(two.split(split)))


def test_wrong_files_of_mnist(small_mnist: Path, tmp_path: Path) -> None:
    packed = small_mnist / "train-images-idx3-ubyte.gz"
    right = packed.read_bytes()
    packed.write_bytes(right[:-100])
    with pytest.raises(ValueError, match="train-images-idx3-ubyte.gz is no complete gzip file"):
        prepare("rotmnist-rebuilt", tmp_path, small_mnist)
    packed.write_bytes(gzip.compress(bytes(100)))
    with pytest.raises(ValueError, match="is not the file of MNIST: expected md5 .* found"):
        prepare("rotmnist-rebuilt", tmp_path, small_mnist)
    packed.unlink()
    with pytest.raises(FileNotFoundError, match="no train-images-idx3-ubyte.gz or train-images-idx3-ubyte in"):
        prepare("rotmnist-rebuilt", tmp_path, small_mnist)
    assert not (tmp_path / "rotmnist_rebuilt.npz").exists()


def write_npz(path: Path, **changes: np.ndarray | None) -> None:
    arrays: dict[str, Any] = {}
    for split, size in (("train", 40), ("valid", 10), ("test", 20)):
        arrays[f"x_{split}"] = np.random.default_rng(0).integers(0, 256, (size, 28, 28), dtype=np.uint8)
        arrays[f"y_{split}"] = np.arange(size) % 10
    np.savez(path, **{key: value for key, value in {**arrays, **changes}.items() if value is not None})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_test": None}, "it has no x_test; expected x_train"),
        ({"x_train": np.zeros((40, 28, 28))}, r"x_train must be uint8 or uint16 \[n, size, size\], got float64"),
        ({"x_train": np.zeros((40, 28, 27), np.uint8)}, r"got uint8 \(40, 28, 27\)"),
        ({"y_valid": np.zeros(9, np.int64)}, r"y_valid must be 10 integers, got int64 \(9,\)"),
        ({"y_valid": np.zeros(10)}, "y_valid must be 10 integers, got float64"),
        ({"y_test": np.array([{}] * 20)}, "allow_pickle=False"),
        ({"y_test": np.arange(20)}, "image 10 of the test split of rotmnist-rebuilt has label 10, expected 0 to 9"),
    ],
)
def test_wrong_arrays(change: dict[str, np.ndarray | None], message: str, tmp_path: Path) -> None:
    write_npz(tmp_path / "rotmnist_rebuilt.npz", **change)
    with pytest.raises(ValueError, match=message):
        open_dataset("rotmnist-rebuilt", tmp_path)


def test_a_damaged_npz(tmp_path: Path) -> None:
    path = tmp_path / "rotmnist_rebuilt.npz"
    write_npz(path)
    right = path.read_bytes()
    altered = bytearray(right)
    altered[5000] ^= 255
    for content in (right[: len(right) // 2], bytes(altered), b"", b"no archive", b"PK\x03\x04" + bytes(50)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"cannot read {path}, it is damaged"):
            open_dataset("rotmnist-rebuilt", tmp_path)


# CIFAR-10


def write_cifar(folder: Path, batches: tuple[int, ...] = (1,), size: int = 100) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "batches.meta.txt").write_text("\n".join(NAMES) + "\n\n")
    for name in (*(f"data_batch_{batch}.bin" for batch in batches), "test_batch.bin"):
        records = np.random.default_rng(len(name) + sum(map(ord, name))).integers(0, 256, (size, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(size) % 10
        (folder / name).write_bytes(records.tobytes())


def test_cifar10(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar(folder, (1, 3))
    dataset = open_dataset("cifar10", tmp_path)
    assert dataset.classes == tuple(NAMES)
    assert [len(dataset.split(split)) for split in ("train", "valid", "test")] == [180, 20, 100]
    assert dataset.valid.labels.bincount().tolist() == [2] * 10
    assert "200 of its 50,000 training images (data_batch_1.bin, data_batch_3.bin)" in dataset.note
    assert dataset.label == "cifar10 sample"
    assert "100 of its 10,000 test images" in dataset.note
    test = np.fromfile(folder / "test_batch.bin", np.uint8).reshape(100, 3073)
    np.testing.assert_array_equal(everything(dataset.test).numpy(), test[:, 1:].reshape(-1, 3, 32, 32))
    train = {
        record[1:].tobytes()
        for batch in (1, 3)
        for record in np.fromfile(folder / f"data_batch_{batch}.bin", np.uint8).reshape(100, 3073)
    }
    found = {image.numpy().tobytes() for split in (dataset.train, dataset.valid) for image in everything(split)}
    assert found == train
    assert torch.equal(dataset.valid.labels, open_dataset("cifar10", tmp_path).valid.labels)


def test_wrong_cifar10_files(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar(folder)
    batch = folder / "data_batch_1.bin"
    right = batch.read_bytes()
    for content in (right[:-73], b""):
        batch.write_bytes(content)
        with pytest.raises(ValueError, match=f"{batch} must be records of 3,073 bytes, found {len(content):,} bytes"):
            open_dataset("cifar10", tmp_path)
    batch.write_bytes(right[: 7 * 3073] + b"\x0b" + right[7 * 3073 + 1 :])
    with pytest.raises(ValueError, match=f"image 7 of {batch} has label 11, expected 0 to 9"):
        open_dataset("cifar10", tmp_path)
    batch.write_bytes(right)
    (folder / "batches.meta.txt").write_text("cat\ndog\n")
    with pytest.raises(ValueError, match="must name 10 classes, found 2"):
        open_dataset("cifar10", tmp_path)
    (folder / "test_batch.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"no test_batch.bin \(found batches.meta.txt, data_batch_1.bin\)"):
        open_dataset("cifar10", tmp_path)


def test_cifar10_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar(tmp_path / "source" / "cifar-10-batches-bin", (1, 2, 3, 4, 5), 20)
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as content:
        content.add(tmp_path / "source" / "cifar-10-batches-bin", "cifar-10-batches-bin")
    official(monkeypatch, cifar10, archive)
    root = tmp_path / "root"
    prepare("cifar10", root, archive)
    assert len(open_dataset("cifar10", root).train) == 90
    assert sorted(os.listdir(root)) == ["cifar-10-batches-bin", "cifar10.sha256.json"]

    archive.write_bytes(archive.read_bytes()[:-500])
    official(monkeypatch, cifar10, archive)
    with pytest.raises(ValueError, match="cifar-10-binary.tar.gz is no complete tar archive"):
        prepare("cifar10", root, archive)
    assert len(open_dataset("cifar10", root).train) == 90, "what was there is still there"


def test_an_archive_cannot_write_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as content:
        content.addfile(tarfile.TarInfo("../escaped.txt"))
    official(monkeypatch, cifar10, archive)
    with pytest.raises(ValueError, match="escaped.txt.*outside the destination"):
        cifar10.prepare(tmp_path / "root", archive)
    assert not list(tmp_path.rglob("escaped.txt"))


# PCam


def write_pcam(folder: Path, sizes: tuple[int, int, int] = (40, 8, 12), **options: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split, size in zip(("train", "valid", "test"), sizes, strict=True):
        images = np.random.default_rng(size).integers(0, 256, (size, 96, 96, 3), dtype=np.uint8)
        with h5py.File(folder / f"camelyonpatch_level_2_split_{split}_x.h5", "w") as file:
            file.create_dataset("x", data=images, **options)
        with h5py.File(folder / f"camelyonpatch_level_2_split_{split}_y.h5", "w") as file:
            file.create_dataset("y", data=(np.arange(size, dtype=np.uint8) % 2).reshape(-1, 1, 1, 1))


@pytest.mark.parametrize("place", ["pcam", "."])
def test_pcam(place: str, tmp_path: Path) -> None:
    write_pcam(tmp_path / place)
    dataset = open_dataset("pcam", tmp_path)
    assert (dataset.channels, dataset.image_size) == (3, 96)
    assert "40 train, 8 validation and 12 test patches (a sample" in dataset.note
    assert dataset.label == "pcam sample"
    assert dataclasses.replace(dataset, whole=True).label == "pcam"
    assert dataset.train.labels.tolist() == [0, 1] * 20
    rows = torch.tensor([39, 3, 0, 3, 17])
    with h5py.File(tmp_path / place / "camelyonpatch_level_2_split_train_x.h5") as file:
        expected = torch.from_numpy(file["x"][:])[rows].permute(0, 3, 1, 2).float() / 255
    assert torch.equal(dataset.train.images(rows), expected)
    assert torch.equal(dataset.train.subset(rows).images(torch.tensor([4, 0])), expected[[4, 0]])


def test_pcam_reads_the_rows_of_a_batch_alone(tmp_path: Path) -> None:
    write_pcam(tmp_path, chunks=(4, 96, 96, 3), compression="gzip")
    path = tmp_path / "camelyonpatch_level_2_split_train_x.h5"
    with h5py.File(path) as file:
        chunk = file["x"].id.get_chunk_info_by_coord((20, 0, 0, 0))
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    path.write_bytes(content)
    train = open_dataset("pcam", tmp_path).train  # opens, for it reads no image
    assert train.images(torch.tensor([39, 0, 19, 24])).shape == (4, 3, 96, 96)
    with pytest.raises(ValueError, match=f"cannot read {path}, it is damaged"):
        train.images(torch.tensor([0, 21]))


def _child(split: Split, answers: Any) -> None:
    answers.put(everything(split).sum().item())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_pcam_can_be_read_in_other_processes(tmp_path: Path) -> None:
    write_pcam(tmp_path, (4, 4, 4))
    split = open_dataset("pcam", tmp_path).train
    total = everything(split).sum().item()
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    children = [context.Process(target=_child, args=(split, answers)) for _ in range(2)]
    for child in children:
        child.start()
    assert [answers.get(timeout=60) for _ in children] == [total, total]
    for child in children:
        child.join()
    assert everything(split).sum().item() == total
    assert everything(pickle.loads(pickle.dumps(split))).sum().item() == total


def test_pcam_reads_no_other_file(tmp_path: Path) -> None:
    write_pcam(tmp_path, (4, 4, 4))
    x = tmp_path / "camelyonpatch_level_2_split_valid_x.h5"
    shape = (4, 96, 96, 3)
    (tmp_path / "secret").write_bytes(bytes(4 * 96 * 96 * 3))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.zeros(shape, np.uint8)

    def external_storage(file: h5py.File) -> None:
        file.create_dataset("x", shape, np.uint8, external=[(str(tmp_path / "secret"), 0, h5py.h5f.UNLIMITED)])

    def external_link(file: h5py.File) -> None:
        file["x"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "x")

    def soft_link_to_it(file: h5py.File) -> None:
        file["far"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "x")
        file["x"] = h5py.SoftLink("far")

    def virtual(file: h5py.File) -> None:
        layout = h5py.VirtualLayout(shape, np.uint8)
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", shape=shape)
        file.create_virtual_dataset("x", layout)

    for write in (external_storage, external_link, soft_link_to_it, virtual):
        with h5py.File(x, "w") as file:
            write(file)
        with pytest.raises(ValueError, match=f"cannot read {x}.*x must be (stored in this file|a data set)"):
            open_dataset("pcam", tmp_path)


def test_the_digest_of_pcam_notices_other_images(tmp_path: Path) -> None:
    write_pcam(tmp_path, (4, 4, 4))
    digest = open_dataset("pcam", tmp_path).digest
    assert open_dataset("pcam", tmp_path).digest == digest
    with h5py.File(tmp_path / "camelyonpatch_level_2_split_test_x.h5", "r+") as file:
        file["x"][2] = 255 - file["x"][2]
    assert is_other_data(open_dataset("pcam", tmp_path).digest, digest)


def test_wrong_pcam_files(tmp_path: Path) -> None:
    write_pcam(tmp_path)
    x, y = (tmp_path / f"camelyonpatch_level_2_split_valid_{letter}.h5" for letter in "xy")
    right = x.read_bytes()
    for content in (right[: len(right) // 2], b"", b"not HDF5"):
        x.write_bytes(content)
        with pytest.raises(ValueError, match=f"cannot read {x}, it is damaged"):
            open_dataset("pcam", tmp_path)
    with h5py.File(x, "w") as file:
        file["pictures"] = np.zeros(3)
    with pytest.raises(ValueError, match=f"cannot read {x}.*it has no data set x"):
        open_dataset("pcam", tmp_path)
    with h5py.File(x, "w") as file:
        file["x"] = np.zeros((7, 96, 96, 3), np.uint8)
    with pytest.raises(ValueError, match=r"x must be uint8 \[8, 96, 96, 3\], as there are 8 labels, got uint8 \(7,"):
        open_dataset("pcam", tmp_path)
    x.write_bytes(right)
    with h5py.File(y, "w") as file:
        file["y"] = np.array([0, 1, 0, 1, 2, 0, 1, 0]).reshape(-1, 1, 1, 1)
    with pytest.raises(ValueError, match="image 4 of the valid split of pcam has label 2, expected 0 to 1"):
        open_dataset("pcam", tmp_path)
    with h5py.File(y, "w") as file:
        file["y"] = np.zeros((8, 2))
    with pytest.raises(ValueError, match=f"cannot read {y}.*y must be an integer for each image, got float64"):
        open_dataset("pcam", tmp_path)
    y.unlink()
    with pytest.raises(FileNotFoundError, match=f"no {y.name} .found camelyonpatch_level_2_split_test_x.h5"):
        open_dataset("pcam", tmp_path)


def test_pcam_is_imported_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    write_pcam(source)
    plain = source / "camelyonpatch_level_2_split_test_x.h5"
    packed = plain.with_name(f"{plain.name}.gz")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    with pytest.raises(ValueError, match=f"{packed} is not the official {packed.name}: expected md5 d8c2d60d"):
        prepare("pcam", tmp_path / "root", source)
    monkeypatch.setitem(pcam.PACKED_MD5, plain.name, md5(packed))
    prepare("pcam", tmp_path / "root", source)
    assert len(open_dataset("pcam", tmp_path / "root").test) == 12
    packed.unlink()
    with pytest.raises(FileNotFoundError, match=f"no {packed.name} or {plain.name} in {source}"):
        prepare("pcam", tmp_path / "root", source)


@pytest.mark.parametrize("fault", ["missing", "not HDF5"])
def test_pcam_is_imported_whole_or_not_at_all(tmp_path: Path, fault: str) -> None:
    source, root = tmp_path / "source", tmp_path / "root"
    write_pcam(source)
    prepare("pcam", root, source)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    write_pcam(source, (4, 4, 4))
    last = source / "camelyonpatch_level_2_split_test_y.h5"
    last.write_bytes(b"not HDF5") if fault == "not HDF5" else last.unlink()
    with pytest.raises((OSError, ValueError), match="no .*six files" if fault == "missing" else f"nothing of {source}"):
        prepare("pcam", root, source)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


# Recorded checksums


def test_recorded_files_are_checked(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar(folder)
    assert {finding.status for finding in verify("cifar10", tmp_path)} == {"unrecorded"}
    prepare("cifar10", tmp_path)
    assert [finding.status for finding in verify("cifar10", tmp_path)] == ["ok"] * 3

    batch = folder / "data_batch_1.bin"
    right = batch.read_bytes()
    batch.write_bytes(right[:500] + b"?" + right[501:])
    with pytest.raises(ValueError, match=f"{batch} is not the file .* expected sha256 .*, found .*gevit data prepare"):
        open_dataset("cifar10", tmp_path)
    statuses = {Path(finding.file).name: finding.status for finding in verify("cifar10", tmp_path)}
    assert statuses == {"batches.meta.txt": "ok", "data_batch_1.bin": "changed", "test_batch.bin": "ok"}
    batch.write_bytes(right[:3073])
    with pytest.raises(ValueError, match="expected 307,300 bytes, found 3,073"):
        open_dataset("cifar10", tmp_path)
    batch.unlink()
    assert [finding.status for finding in verify("cifar10", tmp_path)].count("missing") == 1

    for record in ('{"bytes": "7", "sha256": "a"}', '{"bytes": 7, "sha256": 7}', "{"):
        (tmp_path / "cifar10.sha256.json").write_text(f'{{"files": {{"test_batch.bin": {record}}}}}')
        with pytest.raises(ValueError, match="cifar10.sha256.json is damaged"):
            verify("cifar10", tmp_path)


def test_what_cannot_be_read_is_not_recorded(tmp_path: Path) -> None:
    write_npz(tmp_path / "rotmnist_rebuilt.npz", x_test=None)
    with pytest.raises(ValueError, match="it has no x_test"):
        prepare("rotmnist-rebuilt", tmp_path)
    assert os.listdir(tmp_path) == ["rotmnist_rebuilt.npz"]
    assert [finding.status for finding in verify("rotmnist-rebuilt", tmp_path)] == ["unrecorded", "unreadable"]


def test_published_checksums(tmp_path: Path) -> None:
    (digits,) = verify("digits", tmp_path)
    assert (digits.status, digits.detail) == ("ok", "as published")
    write_pcam(tmp_path / "pcam", (2, 2, 2))
    assert {(f.status, f.detail) for f in verify("pcam", tmp_path)} == {("unrecorded", "not the published file")}
    (missing,) = verify("cifar10", tmp_path)
    assert missing.status == "missing"


def test_digits_need_no_preparation(tmp_path: Path) -> None:
    assert "nothing to prepare" in prepare("digits", tmp_path)
    assert not os.listdir(tmp_path)


def test_reading_writes_nothing(tmp_path: Path) -> None:
    write_cifar(tmp_path / "cifar-10-batches-bin")
    write_pcam(tmp_path / "pcam", (2, 2, 2))
    before = sorted(tmp_path.rglob("*"))
    for name in ("cifar10", "pcam"):
        everything(open_dataset(name, tmp_path).train)
        verify(name, tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


# Real data


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("rotmnist-rebuilt", (10_000, 2_000, 50_000)),
        ("cifar10", (9_000, 1_000, 2_000)),
        ("pcam", (1_000, 200, 500)),
    ],
)
def test_real_data(name: str, sizes: tuple[int, int, int]) -> None:
    dataset = open_dataset(name, reference("data"))
    assert (len(dataset.train), len(dataset.valid), len(dataset.test)) == sizes
    normal = dataset.normalize(dataset.train.images(torch.arange(500)))
    assert normal.mean((0, 2, 3)).abs().max() < 0.15
    assert (normal.std((0, 2, 3)) - 1).abs().max() < 0.1


def test_the_recipe_is_that_of_the_real_rebuilt_file() -> None:
    path = reference("data", "rotmnist_rebuilt.npz")
    random = np.random.default_rng(rotmnist.SEED)
    source, degrees = random.permutation(70_000)[:62_000], random.uniform(0, 360, 62_000)
    with np.load(path) as arrays:
        np.testing.assert_array_equal(arrays["src_index"], source)
        np.testing.assert_array_equal(arrays["angle_deg"], degrees.astype(np.float32))
        images = arrays["x_train"]
    digits, _ = load_digits()
    # Two embedded digits that are also in the file, and where.
    for digit, index in ((1500, 172), (3500, 1817)):
        turned = rotate_digits(digits[digit].numpy(), degrees[index : index + 1])
        np.testing.assert_array_equal(turned[0], images[index])
