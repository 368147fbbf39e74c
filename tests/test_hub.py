from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

import gevit
from gevit.models import GroupTransformer
from gevit.models.base import EquivariantModel, info_of
from gevit.models.cnn import GroupCNN
from gevit.training.report import write_report
from tests.running import assert_same_tensors
from tests.test_report import record

FILES = ["README.md", "config.json", "model.safetensors"]
HOSTILE = ("<script>", "a|b\n# head")


def logits(model: EquivariantModel) -> Tensor:
    torch.manual_seed(1)
    with torch.no_grad():
        found: Tensor = model.eval()(torch.randn(2, model.preset.in_channels, 64, 64))
    return found


def front_matter(folder: Path) -> dict[str, Any]:
    text = (folder / "README.md").read_text(encoding="utf-8")
    facts = yaml.safe_load(text.split("---\n")[1])
    assert isinstance(facts, dict)
    return facts


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "new" / "model"
    gevit.create_model("d4_sa", preset="tiny", pretrained="eurosat").save_pretrained(folder)
    return folder


class TestRoundTrip:
    def test_shipped_weights(self, saved: Path) -> None:
        assert sorted(path.name for path in saved.iterdir()) == FILES
        model = gevit.create_model("d4_sa", preset="tiny", pretrained="eurosat")
        for read in (gevit.from_pretrained(saved), GroupTransformer.from_pretrained(str(saved)), gevit.load(saved)):
            assert torch.equal(logits(read), logits(model))
            assert read.info == model.info
            assert not read.training

    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("r4_sa", {"num_classes": 3, "in_channels": 2, "neighborhood": 3, "pooling": "sum_max"}),
            ("d4_sa", {"preset": "tiny", "restrict": "c4", "encoding": ["ge", "ge", "relative"]}),
            ("z2_sa", {"num_classes": 0}),
            ("p4_cnn", {}),
        ],
    )
    def test_random_weights(self, name: str, options: dict[str, Any], tmp_path: Path) -> None:
        model: EquivariantModel = gevit.create_model(name, **options)
        model.save_pretrained(tmp_path)
        read = gevit.from_pretrained(tmp_path)
        assert type(read) is type(model)
        assert torch.equal(logits(read), logits(model))
        assert info_of(read).classes == tuple(map(str, range(model.preset.num_classes)))
        pixels = torch.rand(1, model.preset.in_channels, 64, 64)
        assert torch.equal(info_of(read).normalize(pixels), pixels)

    def test_config_is_the_record_of_gevit_save(self, saved: Path, tmp_path: Path) -> None:
        model = gevit.from_pretrained(saved)
        gevit.save(model, info_of(model), tmp_path / "model.safetensors")
        assert (tmp_path / "model.json").read_bytes() == (saved / "config.json").read_bytes()
        tensors = load_file(saved / "model.safetensors")
        assert_same_tensors(load_file(tmp_path / "model.safetensors"), tensors)

    def test_another_class_is_refused(self, saved: Path) -> None:
        with pytest.raises(ValueError, match="holds a GroupTransformer, not a GroupCNN"):
            GroupCNN.from_pretrained(saved)

    def test_a_model_without_a_name_cannot_be_described(self, tmp_path: Path) -> None:
        model = gevit.create_model("z2_sa")
        model.recipe = None
        with pytest.raises(ValueError, match="gevit.create_model or gevit.load"):
            model.save_pretrained(tmp_path / "new")
        assert not (tmp_path / "new").exists()


def make_run(folder: Path, names: tuple[str, ...]) -> Path:
    """The folder of a training run, as far as a card needs it."""
    model = gevit.create_model("d1_sa", num_classes=len(names), neighborhood=3)
    run = record(names, environment={"gevit": "1", "torch": "2"})
    facts: dict[str, Any] = {
        "classes": names,
        "data": "photos",
        "mean": (0.5,),
        "std": (0.2,),
        "trained": {"test_accuracy": run.test.accuracy},
    }
    gevit.save(model, dataclasses.replace(model.describe(), **facts), folder / "model.safetensors")
    write_report(folder, run)
    return folder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"), ("cat", "dog"))


class TestCard:
    def test_of_shipped_weights(self, saved: Path) -> None:
        facts = front_matter(saved)
        assert facts["library_name"] == "gevit"
        [result] = facts["model-index"][0]["results"]
        trained = json.loads((saved / "config.json").read_text())["trained"]
        assert result["metrics"][0]["value"] == trained["test_accuracy"] > 0.9
        text = (saved / "README.md").read_text(encoding="utf-8")
        assert "Helber et al. 2019" in text
        assert text.count("\n# ") == 1

    def test_from_the_report_of_a_run(self, run_folder: Path, tmp_path: Path) -> None:
        gevit.load(run_folder).save_pretrained(tmp_path / "hub")
        report = json.loads((run_folder / "report.json").read_text())
        text = (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")
        for number in (
            f"{100 * report['test']['accuracy']:.1f}%",
            f"{report['equivariance'][1]['logits']['worst']:.1e}",
            "90.0% (82.6 to 94.5)",
            "digits, rotated",
            "gevit train --model d1_sa",
        ):
            assert number in text, number
        [result] = front_matter(tmp_path / "hub")["model-index"][0]["results"]
        assert result["metrics"][0]["value"] == report["test"]["accuracy"]
        # And on to another folder, whole.
        gevit.from_pretrained(tmp_path / "hub").save_pretrained(tmp_path / "copy")
        assert (tmp_path / "copy" / "README.md").read_text(encoding="utf-8") == text

    def test_a_model_that_has_changed_has_no_scores(self, run_folder: Path, tmp_path: Path) -> None:
        model = gevit.load(run_folder)
        with torch.no_grad():
            next(model.parameters()).add_(1.0)
        model.save_pretrained(tmp_path / "hub")
        assert "Scores" not in (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")
        assert "model-index" not in front_matter(tmp_path / "hub")

    def test_the_report_of_other_weights_is_not_told(self, run_folder: Path, tmp_path: Path) -> None:
        run = shutil.copytree(run_folder, tmp_path / "run")
        model = gevit.load(run)
        gevit.save(model, dataclasses.replace(info_of(model), trained={"epoch": 4}), run / "model.safetensors")
        gevit.load(run).save_pretrained(tmp_path / "hub")
        assert "test images" not in (tmp_path / "hub/README.md").read_text()

    def test_hostile_names(self, tmp_path: Path) -> None:
        gevit.load(make_run(tmp_path / "run", HOSTILE)).save_pretrained(tmp_path / "hub")
        text = (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")
        assert "<script>" not in text
        assert "\n# head" not in text

    def test_a_readme_beside_the_weights_of_a_run_is_not_published(self, run_folder: Path, tmp_path: Path) -> None:
        shutil.copytree(run_folder, tmp_path / "run")
        (tmp_path / "run" / "README.md").write_bytes(b"private notes \xff")
        gevit.load(tmp_path / "run").save_pretrained(tmp_path / "hub")
        text = (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")
        assert "private notes" not in text
        assert "Scores on test images" in text

    def test_a_card_that_was_edited_goes_on(self, run_folder: Path, tmp_path: Path) -> None:
        gevit.load(run_folder).save_pretrained(tmp_path / "hub")
        (tmp_path / "hub" / "README.md").write_text("my own words")
        gevit.from_pretrained(tmp_path / "hub").save_pretrained(tmp_path / "copy")
        assert (tmp_path / "copy" / "README.md").read_text() == "my own words"

    def test_another_model_does_not_go_into_the_folder_of_a_run(self, run_folder: Path, tmp_path: Path) -> None:
        shutil.copytree(run_folder, tmp_path / "run")
        before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
        with pytest.raises(ValueError, match=r"another model already, model.safetensors and model.json; name another"):
            gevit.create_model("z2_sa", preset="nano").save_pretrained(tmp_path / "run")
        assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before

    def test_a_card_in_the_folder_of_its_run_goes_on(self, run_folder: Path, tmp_path: Path) -> None:
        shutil.copytree(run_folder, tmp_path / "run")
        gevit.load(tmp_path / "run").save_pretrained(tmp_path / "run")
        with (tmp_path / "run" / "README.md").open("a") as card:
            card.write("my own words")
        gevit.load(tmp_path / "run").save_pretrained(tmp_path / "copy")
        assert (tmp_path / "copy" / "README.md").read_text(encoding="utf-8").endswith("my own words")

    def test_a_card_that_is_there_stays(self, tmp_path: Path) -> None:
        (tmp_path / "README.md").write_text("mine")
        gevit.create_model("z2_sa").save_pretrained(tmp_path)
        assert (tmp_path / "README.md").read_text() == "mine"

    @pytest.mark.parametrize("text", ["[]", "{", '{"test": {}}', "[" * 10_000])
    def test_a_damaged_report_is_named(self, run_folder: Path, tmp_path: Path, text: str) -> None:
        shutil.copytree(run_folder, tmp_path / "run")
        model = gevit.load(tmp_path / "run")
        (tmp_path / "run" / "report.json").write_text(text)
        with pytest.raises(ValueError, match="report.json is not the report of a training run"):
            model.save_pretrained(tmp_path / "hub")
        assert not (tmp_path / "hub").exists()


class TestBadFolders:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda config: "[1, 2]", "does not describe a model"),
            (lambda config: "{", "is damaged"),
            (lambda config: "[" * 100_000, "is damaged"),
            (lambda config: json.dumps(config | {"name": "resnet50"}), "unknown model 'resnet50'"),
            (lambda config: json.dumps(config | {"in_channels": 10**9}), "in_channels must be at most"),
            (lambda config: json.dumps(config | {"auto_map": {"AutoModel": "evil.py"}}), "unknown field 'auto_map'"),
            (lambda config: json.dumps(config | {"mean": [0.5, 0.5, 0.5]}), "do not belong together"),
        ],
    )
    def test_hostile_configs(self, saved: Path, tmp_path: Path, change: Any, message: str) -> None:
        config = json.loads((saved / "config.json").read_text())
        (tmp_path / "config.json").write_text(change(config))
        (tmp_path / "model.safetensors").write_bytes((saved / "model.safetensors").read_bytes())
        with pytest.raises(ValueError, match=message) as caught:
            gevit.from_pretrained(tmp_path)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
    def test_missing_files(self, saved: Path, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes((saved / name).read_bytes())
        with pytest.raises(ValueError, match="there is no .*; a model is saved as two files"):
            gevit.from_pretrained(tmp_path)

    def test_a_pickle_is_no_model(self, saved: Path, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_bytes((saved / "config.json").read_bytes())
        torch.save({}, tmp_path / "pytorch_model.bin")
        with pytest.raises(ValueError, match="there is no .*model.safetensors"):
            gevit.from_pretrained(tmp_path)


class TestHub:
    """The hub itself, without the network."""

    def test_download(self, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: dict[str, Any] = {}

        def download(repo_id: str, **options: Any) -> str:
            asked.update(options, repo_id=repo_id)
            return str(saved)

        monkeypatch.setattr("huggingface_hub.snapshot_download", download)
        model = gevit.from_pretrained("you/model", revision="v1", token="secret")
        assert info_of(model).data == "eurosat"
        assert (asked["repo_id"], asked["revision"], asked["token"]) == ("you/model", "v1", "secret")
        assert set(asked["allow_patterns"]) == set(FILES)

    @pytest.mark.parametrize("source", ["you/not-there", "not/a/folder", "../x y"])
    def test_what_is_nowhere(self, source: str, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="there is no folder") as caught:
            gevit.from_pretrained(source, local_files_only=True, cache_dir=tmp_path)
        assert "\n" not in str(caught.value)

    def test_upload(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[tuple[str, dict[str, Any]]] = []

        class Api:
            def __init__(self, **options: Any) -> None:
                calls.append(("api", options))

            def create_repo(self, **options: Any) -> Any:
                calls.append(("create", options))
                return SimpleNamespace(repo_id=options["repo_id"])

            def upload_folder(self, **options: Any) -> str:
                calls.append(("upload", options | {"files": sorted(p.name for p in options["folder_path"].iterdir())}))
                assert gevit.from_pretrained(options["folder_path"]).info is not None
                return "address"

        monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
        model = gevit.create_model("z2_sa", num_classes=2)
        assert model.push_to_hub("you/model", private=True, token="secret", commit_message="hello") == "address"
        facts = dict(calls)
        assert facts["api"]["token"] == "secret"
        assert facts["create"]["private"] is True
        assert facts["upload"]["files"] == FILES
        assert facts["upload"]["commit_message"] == "hello"


def test_folders_need_no_other_package(saved: Path) -> None:
    code = f"""
import sys
sys.modules["huggingface_hub"] = None
import gevit
model = gevit.from_pretrained({str(saved)!r})
try:
    model.push_to_hub("you/model")
except ImportError as error:
    assert "pip install 'gevit[hub]'" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)
