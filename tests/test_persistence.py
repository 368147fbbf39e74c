from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import gevit
from gevit.environment import environment
from gevit.files import write_aside
from gevit.models.base import EquivariantModel, info_of
from gevit.models.info import FORMAT, ModelInfo
from gevit.models.registry import build_model
from gevit.pretrained import pretrained_path

INFO = ModelInfo(
    name="r4_sa",
    preset="rotmnist",
    in_channels=1,
    num_classes=3,
    classes=("a", "ß", "c"),
    image_size=28,
    mean=(0.1307,),
    std=(0.3081,),
    data="digits",
    trained={"epoch": 3, "command": "gevit train"},
)


def build(info: ModelInfo) -> EquivariantModel:
    return build_model(info.name, info.preset, **info.options).eval()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with a saved model."""
    gevit.save(build(INFO), INFO, tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    "info",
    [
        INFO,
        dataclasses.replace(INFO, name="d1_sa", encoding="relative", neighborhood=3, pooling="sum_max"),
        dataclasses.replace(INFO, name="z2_sa", neighborhood=None),
        dataclasses.replace(INFO, name="p4_cnn", in_channels=3, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0)),
    ],
    ids=lambda info: info.name,
)
@pytest.mark.parametrize("given", ["model.safetensors", "model.json", "."])
def test_a_loaded_model_is_the_saved_one_to_the_bit(info: ModelInfo, given: str, tmp_path: Path) -> None:
    model = build(info)
    gevit.save(model, info, tmp_path / "model.safetensors")
    loaded = gevit.load(tmp_path / given)
    images = torch.randn(2, info.in_channels, 28, 28)
    with torch.no_grad():
        assert torch.equal(loaded(images), model(images))
    assert info_of(loaded) == info
    assert not loaded.training
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "model.safetensors"]


def test_loading_leaves_the_callers_random_numbers_alone(saved: Path) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    gevit.load(saved)
    assert torch.equal(torch.rand(3), expected)


def test_the_backend_is_chosen_at_loading(saved: Path) -> None:
    images = torch.randn(1, 1, 28, 28)
    with torch.no_grad():
        auto, reference = gevit.load(saved)(images), gevit.load(saved, backend="reference")(images)
    assert torch.allclose(auto, reference, atol=1e-5)
    with pytest.raises(ValueError, match="unknown backend 'x'"):
        gevit.load(saved, backend="x")


def test_normalisation_is_by_channel() -> None:
    info = dataclasses.replace(INFO, in_channels=2, mean=(0.5, 0.25), std=(0.5, 0.25))
    images = torch.ones(1, 2, 4, 4)
    assert info.normalize(images)[0, :, 0, 0].tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ("a",)}, "classes must have 3 entries"),
        ({"mean": (0.1, 0.2)}, "mean must have 1 entries"),
        ({"std": ()}, "std must have 1 entries"),
        ({"std": (0.0,)}, "std must be positive"),
    ],
)
def test_facts_that_contradict_each_other_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(INFO, **change)  # type: ignore[arg-type]


def test_a_model_that_info_does_not_describe_is_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(ValueError, match=r"not the one that info describes: .* expected float32\[3, 20\]"):
        gevit.save(gevit.create_model("r4_sa", num_classes=10), INFO, path)
    mixed = build(INFO)
    mixed.lifting.double()
    with pytest.raises(ValueError, match="float64"):
        gevit.save(mixed, INFO, path)
    with pytest.raises(ValueError, match=r"expected a \.safetensors file"):
        gevit.save(build(INFO), INFO, tmp_path / "model.pt")
    for change in ({"encoding": "relative"}, {"pooling": "sum_max"}, {"neighborhood": 3}, {"truncate": True}):
        other = dataclasses.replace(INFO, **change)
        with pytest.raises(ValueError, match=f"not the one that info describes: its {next(iter(change))} is"):
            gevit.save(build(other), INFO, path)
    assert not list(tmp_path.iterdir())


def test_a_model_that_was_built_has_no_info() -> None:
    with pytest.raises(ValueError, match=r"read with gevit\.load"):
        info_of(gevit.create_model("z2_sa"))


class TestDamage:
    @pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.999])
    def test_weights_cut_short(self, saved: Path, keep: float) -> None:
        path = saved / "model.safetensors"
        content = path.read_bytes()
        path.write_bytes(content[: int(keep if keep >= 1 else keep * len(content))])
        with pytest.raises(ValueError, match=r"model\.safetensors is damaged or cut short"):
            gevit.load(saved)

    def test_one_bit_of_the_weights(self, saved: Path) -> None:
        path = saved / "model.safetensors"
        content = bytearray(path.read_bytes())
        content[-100] ^= 1
        path.write_bytes(content)
        with pytest.raises(ValueError, match="do not belong together, or one of them was changed"):
            gevit.load(saved)

    def test_a_changed_number_in_the_json(self, saved: Path) -> None:
        path = saved / "model.json"
        path.write_text(path.read_text(encoding="utf-8").replace("0.1307", "0.1507"), encoding="utf-8")
        with pytest.raises(ValueError, match="do not belong together"):
            gevit.load(saved)

    def test_any_flipped_byte_in_the_json(self, saved: Path) -> None:
        path = saved / "model.json"
        content = path.read_bytes()
        for place in range(0, len(content), 3):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(ValueError, match=r"model\.json.*(damaged|does not describe a model)"):
                gevit.load(saved)

    def test_files_of_two_models(self, saved: Path) -> None:
        weights = (saved / "model.safetensors").read_bytes()
        gevit.save(build(INFO), INFO, saved / "model.safetensors")
        (saved / "model.safetensors").write_bytes(weights)
        gevit.load(saved)  # the same facts and the weights they were written with
        gevit.save(build(INFO), dataclasses.replace(INFO, data="other"), saved / "model.safetensors")
        (saved / "model.safetensors").write_bytes(weights)
        with pytest.raises(ValueError, match="do not belong together"):
            gevit.load(saved)

    def test_a_newer_format(self, saved: Path) -> None:
        path = saved / "model.json"
        path.write_text(json.dumps({"format": FORMAT + 1}))
        with pytest.raises(ValueError, match=rf"format {FORMAT + 1}, written by a newer gevit"):
            gevit.load(saved)

    @pytest.mark.parametrize("content", ["[]", "{}", '{"format": "x"}', "null"])
    def test_json_of_something_else(self, saved: Path, content: str) -> None:
        (saved / "model.json").write_text(content)
        with pytest.raises(ValueError, match="does not describe a model"):
            gevit.load(saved)

    def test_weights_of_something_else(self, saved: Path) -> None:
        save_file({"x": torch.zeros(1)}, saved / "model.safetensors")
        with pytest.raises(ValueError, match=r"not written by gevit\.save"):
            gevit.load(saved)

    def test_missing_files(self, saved: Path, tmp_path: Path) -> None:
        (saved / "model.json").unlink()
        with pytest.raises(ValueError, match=r"there is no .*model\.json"):
            gevit.load(saved / "model.safetensors")
        with pytest.raises(ValueError, match=r"there is no .*none\.json"):
            gevit.load(tmp_path / "none.safetensors")
        with pytest.raises(ValueError, match=r"expected a \.safetensors file"):
            gevit.load(tmp_path / "model.ckpt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"neighborhood": 20001}, "neighborhood must be at most 255, got 20001"),
        ({"neighborhood": 4}, "neighborhood must be odd"),
        ({"neighborhood": "5"}, "neighborhood must be a positive integer, got '5'"),
        ({"in_channels": 10**9}, "in_channels must be at most 10,000"),
        ({"num_classes": 10**9}, "num_classes must be at most 100,000"),
        ({"num_classes": True}, "num_classes must be a positive integer, got True"),
        ({"num_classes": 4}, "classes must have 4 entries"),
        ({"image_size": -1}, "image_size must be a positive integer"),
        ({"name": ["r4_sa"]}, r"name must be text, got \['r4_sa'\]"),
        ({"name": "r4"}, "unknown model 'r4'.*did you mean 'r4_sa'"),
        ({"preset": "mnist"}, "unknown preset 'mnist'"),
        ({"encoding": "x"}, "unknown encoding 'x'"),
        ({"pooling": None}, "pooling must be text, got None"),
        ({"classes": None}, r"classes must be a tuple \(in JSON, a list\), got None"),
        ({"classes": "abc"}, r"classes must be a tuple \(in JSON, a list\), got 'abc'"),
        ({"classes": ["a", 1, "c"]}, "classes must be text, got 1"),
        ({"classes": ["a", "\udc80", "c"]}, "classes must be text that UTF-8 can write"),
        ({"mean": [float("nan")]}, "mean must hold finite numbers, got nan"),
        ({"mean": [[0.5]]}, r"mean must hold finite numbers, got \[0.5\]"),
        ({"std": [float("inf")]}, "std must hold finite numbers, got inf"),
        ({"truncate": 1}, "truncate must be true or false, got 1"),
        ({"trained": []}, "trained must be an object"),
        ({"surprise": 1}, "unknown field 'surprise'; valid: name, "),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_a_field_that_cannot_be_is_named_before_a_model_is_built(
    saved: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], message: str
) -> None:
    monkeypatch.setattr("gevit.persistence.build", lambda *_: pytest.fail("a model was built"))
    path = saved / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | change), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"model\.json does not describe a model: {message}"):
        gevit.load(saved)


def test_files_that_are_no_description_at_all(saved: Path) -> None:
    path = saved / "model.json"
    content = json.loads(path.read_text("utf-8"))
    del content["classes"]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"model\.json does not describe a model: the field 'classes' is missing"):
        gevit.load(saved)
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"model\.json is damaged"):
        gevit.load(saved)
    with path.open("wb") as file:
        file.truncate(2**33)  # a hole: 8 GB to read, and none on disk
    with pytest.raises(ValueError, match=r"model\.json does not describe a model: it is larger than"):
        gevit.load(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "r5_sa"}, "unknown model 'r5_sa'"),
        ({"name": "z2_sa"}, r"not those of 'z2_sa' here: .*element is float32"),
        ({"preset": "pcam"}, "missing body.stage2_block1.shortcut.0.weight"),
        ({"num_classes": 2, "classes": ("a", "b")}, r"expected float32\[2, 20\]"),
    ],
)
def test_weights_and_facts_that_do_not_fit(
    saved: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], message: str
) -> None:
    """A model whose code has changed since it was saved: made here by saving without the check."""
    monkeypatch.setattr("gevit.persistence._check_fit", lambda *_: None)
    monkeypatch.setattr("gevit.persistence._blank", lambda *_: build(INFO))
    gevit.save(build(INFO), dataclasses.replace(INFO, **change), saved / "model.safetensors")  # type: ignore[arg-type]
    monkeypatch.undo()
    with pytest.raises(ValueError, match=message):
        gevit.load(saved)


def test_pretrained_weights_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match=r"no pretrained weights of 'cpvt' for 'nothing'; there are: "):
        pretrained_path("cpvt", "nothing")


class TestWriteAside:
    def test_a_failure_leaves_what_was_there(self, tmp_path: Path) -> None:
        path = tmp_path / "a.txt"
        path.write_text("old")

        def write() -> None:
            with write_aside(path) as aside:
                aside.write_text("half")
                raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            write()
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_full_disk_is_said(self, tmp_path: Path) -> None:
        def write() -> None:
            with write_aside(tmp_path / "a.txt"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.raises(OSError, match=r"cannot write .*a\.txt: the disk is full"):
            write()

    def test_places_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()

        def write(path: Path) -> None:
            with write_aside(path) as aside:
                aside.write_text("x")

        with pytest.raises(OSError, match=r"cannot write .*a\.txt: "):
            write(tmp_path / "file" / "a.txt")
        (tmp_path / "folder.txt").mkdir()
        with pytest.raises(OSError, match=r"cannot write .*folder\.txt: "):
            write(tmp_path / "folder.txt")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.txt"]

    def test_a_saved_model_survives_a_failed_save(self, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before, write_bytes = load_file(saved / "model.safetensors"), Path.write_bytes
        other = dataclasses.replace(INFO, data="other data")
        for failing in ("safetensors", "json"):

            def full(self: Path, content: bytes, failing: str = failing) -> int:
                if self.suffix == f".{failing}":
                    raise OSError(errno.ENOSPC, "no space")
                return write_bytes(self, content)

            monkeypatch.setattr(Path, "write_bytes", full)
            with pytest.raises(OSError, match="the disk is full"):
                gevit.save(build(INFO), other, saved / "model.safetensors")
            assert all(torch.equal(value, before[key]) for key, value in gevit.load(saved).state_dict().items())


def test_environment_names_what_a_result_depends_on() -> None:
    facts = environment()
    assert facts["torch"] == torch.__version__
    assert facts["threads"] == str(torch.get_num_threads())
    assert set(facts) - {"commit"} == {"gevit", "python", "torch", "cpu", "cores", "threads", "system"}


def test_command_line_flags_do_not_wait_for_torch() -> None:
    code = (
        "import sys; from gevit.cli import arguments; "
        "from gevit.cli import evaluate, predict; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_model_comes_back_in_its_precision(tmp_path: Path, dtype: torch.dtype) -> None:
    model = gevit.load(pretrained_path("r4_sa", "nano")).to(dtype)
    gevit.save(model, info_of(model), tmp_path / "model.safetensors")
    again = gevit.load(tmp_path)
    assert {tensor.dtype for tensor in again.parameters()} == {dtype}
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_default_precision_does_not_matter() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        model = gevit.create_model("r4_sa", preset="nano", pretrained=True)
        assert model(torch.zeros(1, 1, 28, 28, dtype=torch.float32)).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_weights_of_a_hub_folder_can_be_named(tmp_path: Path) -> None:
    gevit.create_model("r4_sa", preset="nano", pretrained=True).save_pretrained(tmp_path)
    for name in ("model.safetensors", "config.json"):
        assert gevit.load(tmp_path / name).info == gevit.load(tmp_path).info
