"""Examine my model: a checkpoint and images, uploaded or named at the start, in a real browser."""

from __future__ import annotations

import re
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from e2e.conftest import lab, opened
from e2e.driving import drop
from gevit.data import open_dataset
from gevit.pretrained import pretrained_path


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of digits, with a folder for each class, and names too long for a plain header of tar."""
    folder, split = tmp_path_factory.mktemp("digits"), open_dataset("digits-upright").test
    for index in range(200):
        path = folder / str(int(split.labels[index])) / f"{'digit-' * 20}{index}.png"
        path.parent.mkdir(exist_ok=True)
        pixels = (255 * split.images(torch.tensor([index]))[0, 0]).byte().numpy()
        Image.fromarray(pixels).save(path)
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The two files of a model."""
    folder, weights = tmp_path_factory.mktemp("run"), pretrained_path("r4_sa", "nano", "digits-upright")
    return tuple(  # type: ignore[return-value]
        Path(shutil.copy(weights.with_suffix(suffix), folder / f"model{suffix}"))
        for suffix in (".safetensors", ".json")
    )


@pytest.fixture
def examine(page: Page) -> Page:
    page.click("#tab-examine")
    return page


def run(page: Page) -> None:
    page.select_option("#count", "20")
    page.click("#start")
    expect(page.locator("#findings")).to_be_visible(timeout=60_000)


def test_an_uploaded_checkpoint_on_an_uploaded_archive(
    examine: Page, checkpoint: tuple[Path, Path], images: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "images.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(images.rglob("*.png")):
            file.write(path, path.relative_to(images))
    examine.set_input_files("#checkpoint", list(checkpoint))
    examine.wait_for_selector("#subject[data-loaded]")
    expect(examine.locator("#subject option:checked")).to_have_text("Your r4_sa")
    examine.set_input_files("#archive", archive)
    expect(examine.locator("#set option:checked")).to_have_text("uploaded: images.zip")
    run(examine)
    expect(examine.locator("#findings .tile").first).to_contain_text("yes")
    with examine.expect_download() as download:
        examine.click("text=Download the report")
    report = Path(download.value.path()).read_text("utf-8")
    assert "r4_sa, examined" in report
    assert "<script" not in report
    # The model can be turned, too.
    examine.click("#tab-turn")
    examine.click("#kinds >> text=Your r4_sa")
    expect(examine.locator(".card h2")).to_have_text(["Your model"])
    expect(examine.locator("#note")).to_have_text("Open or drop an image to begin.")
    expect(examine.locator("#dial")).to_be_hidden()  # with nothing to turn


def test_a_folder_on_a_shipped_model(examine: Page, images: Path) -> None:
    examine.select_option("#subject", "digits 2")
    examine.set_input_files("#folder", images)
    expect(examine.locator("#set option:checked")).to_have_text(f"uploaded: {images.name}")
    run(examine)
    expect(examine.locator("#findings .tile").first).to_contain_text("no group")
    assert examine.locator(".turns li").count() > 3
    expect(examine.locator(".turns li").first).to_contain_text(re.compile(r"\d/(digit-)+\d+\.png"))


def test_cancelling(examine: Page) -> None:
    examine.select_option("#count", "500")
    examine.click("#start")
    examine.click("#cancel")
    expect(examine.locator("#start")).to_be_enabled()
    expect(examine.locator("#findings")).to_be_hidden()


def test_a_running_examination_keeps_its_cancel_button(examine: Page) -> None:
    examine.select_option("#count", "500")
    examine.dblclick("#start")
    examine.click("#tab-turn")
    examine.click("#tab-examine")
    examine.select_option("#subject", "digits 1")
    expect(examine.locator("#start")).to_be_disabled()
    expect(examine.locator("#problem")).to_be_hidden()
    examine.click("#cancel")
    expect(examine.locator("#start")).to_be_enabled()
    expect(examine.locator("#cancel")).to_be_hidden()


def test_a_page_that_is_reloaded_follows_the_running_examination(examine: Page) -> None:
    examine.select_option("#count", "500")
    examine.click("#start")
    expect(examine.locator("#progress-text")).to_contain_text("%")
    examine.reload()
    examine.click("#tab-examine")
    expect(examine.locator("#progress-text")).to_contain_text("%")
    examine.click("#cancel")
    expect(examine.locator("#start")).to_be_enabled()


def test_files_that_are_no_model_or_no_archive(examine: Page, checkpoint: tuple[Path, Path], tmp_path: Path) -> None:
    weights, info = checkpoint
    pickled, broken, text = tmp_path / "model.pt", tmp_path / "model.safetensors", tmp_path / "images.zip"
    torch.save({"weight": torch.zeros(2)}, pickled)
    shutil.copy(pickled, broken)
    text.write_text("hello")
    for files, words in (
        ([pickled], "model.pt looks pickled"),
        ([broken, info], "these weights are pickled"),
        ([weights], "There is no .json among those chosen"),
    ):
        examine.set_input_files("#checkpoint", files)
        expect(examine.locator("#problem")).to_contain_text(words)
    drop(examine, pickled)
    expect(examine.locator("#problem")).to_contain_text("model.pt looks pickled")
    examine.set_input_files("#checkpoint", [broken, info])
    examine.set_input_files("#checkpoint", [weights])  # known to be wrong before the server has answered
    expect(examine.locator("html")).to_have_attribute("data-waiting", "0")
    expect(examine.locator("#problem")).to_contain_text("There is no .json among those chosen")
    examine.set_input_files("#checkpoint", [broken, info])
    examine.set_input_files("#checkpoint", [weights, info])  # is loaded, so nothing is wrong any more
    expect(examine.locator("#subject option:checked")).to_have_text("Your r4_sa")
    expect(examine.locator("#problem")).to_be_hidden()
    notes = tmp_path / "notes.txt"
    notes.write_text("hello")
    drop(examine, notes)
    expect(examine.locator("#problem")).to_contain_text("Drop the two files of a model, or an archive of images")
    examine.set_input_files("#archive", text)
    expect(examine.locator("#set option:checked")).to_have_text("uploaded: images.zip")
    examine.click("#start")
    expect(examine.locator("#problem")).to_contain_text("no archive of a known kind")


def test_named_at_the_start(browser: Browser, checkpoint: tuple[Path, Path], images: Path) -> None:
    with (
        lab("--checkpoint", str(checkpoint[0]), "--data", str(images)) as (address, _),
        opened(browser, address) as page,
    ):
        expect(page.locator("#kinds [aria-checked=true]")).to_have_text("Your r4_sa")
        expect(page.locator(".card h2")).to_have_text(["Your model"])
        assert page.locator("#samples button").count() >= 10
        page.click("#tab-examine")
        expect(page.locator("#set option:checked")).to_have_text(images.name)
        run(page)
