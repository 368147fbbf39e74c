"""The lab, asked as its page asks: right answers, readable refusals, and nobody else let in."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import pickle
import re
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("starlette", reason="the lab needs: pip install 'gevit[app]'")
pytest.importorskip("httpx", reason="the tests of the lab need: pip install 'gevit[dev]'")

from starlette.testclient import TestClient

import gevit
from gevit.app.guard import is_own_name
from gevit.app.inside import attention
from gevit.app.lab import Lab
from gevit.app.scenes import Contender
from gevit.app.server import make_app
from gevit.app.turning import ANGLES, PARTS, Move
from gevit.app.work import Work
from gevit.data import load_digits
from gevit.data.dataset import DIGEST_VERSION
from gevit.models.info import ModelInfo
from gevit.pretrained import pretrained_path

HOST = "http://127.0.0.1:8642"
DIGIT = "/api/scenes/digits/images/sample3"
MOVES_AT_90 = [(0, False), (1, True), (2, True)]  # GE, GSA, plain


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(make_app(Lab()), HOST) as client:
        yield client


def get(client: TestClient, path: str, **values: object) -> Any:
    response = client.get(path, params={name: str(value) for name, value in values.items()})
    assert response.status_code == 200, response.text
    return response.json()


def png(pixels: np.ndarray, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form, **options)
    return file.getvalue()


def send(client: TestClient, content: bytes, scene: str = "digits") -> Any:
    return client.post(f"/api/scenes/{scene}/images", content=content)


class TestTurn:
    @pytest.mark.parametrize("angle", [90, 180, 270, -90, 450])
    def test_at_quarter_turns_the_equivariant_answer_stays_and_the_others_move(
        self, client: TestClient, angle: int
    ) -> None:
        found = get(client, f"{DIGIT}/turn", angle=angle)
        assert found["exact"]
        equivariant, twin, plain = found["answers"]
        assert equivariant["promised"]
        assert equivariant["change"] < 1e-5
        assert equivariant["error"] < 1e-5
        assert [answer["in_group"] for answer in found["answers"]] == [True, True, False]
        for other in (twin, plain):
            assert not other["promised"]
            assert other["change"] > 1e-4
            assert other["error"] > 1e-2

    def test_upright_nothing_moves(self, client: TestClient) -> None:
        for answer in get(client, f"{DIGIT}/turn")["answers"]:
            assert answer["change"] == answer["error"] == 0
            assert sum(answer["probabilities"]) == pytest.approx(1, abs=1e-5)

    def test_flips_are_exact_for_the_model_that_knows_them(self, client: TestClient) -> None:
        noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        image = send(client, png(noise), "satellite").json()["image"]
        path = f"/api/scenes/satellite/images/{image}"
        for angle in (0, 90, 180):
            equivariant, plain = get(client, f"{path}/turn", flip=1, angle=angle)["answers"]
            assert equivariant["promised"]
            assert equivariant["change"] < 1e-5
            assert plain["error"] > 1e-3
        flipped_digit = get(client, f"{DIGIT}/turn", flip=1)["answers"][0]
        assert not flipped_digit["promised"]
        assert not flipped_digit["in_group"]
        assert flipped_digit["error"] > 1e-2

    def test_the_full_turn_has_the_answers_of_its_angles(self, client: TestClient) -> None:
        parts = [get(client, f"{DIGIT}/sweep", part=part) for part in range(PARTS)]
        angles = sorted(angle for part in parts for angle in part["angles"])
        assert angles == [360 * k / ANGLES for k in range(ANGLES)]
        angle, answers = parts[3]["angles"][1], parts[3]["answers"]
        for turned, swept in zip(get(client, f"{DIGIT}/turn", angle=angle)["answers"], answers, strict=True):
            assert turned["probabilities"] == pytest.approx(swept["probabilities"][1], abs=1e-5)
            assert turned["error"] == pytest.approx(swept["errors"][1], abs=1e-4)

    def test_the_full_turn_of_a_flipped_and_shifted_image_is_that_of_its_moves(self, client: TestClient) -> None:
        moves = {"flip": 1, "right": 2, "down": -1}
        part = get(client, f"{DIGIT}/sweep", part=2, **moves)
        turned = get(client, f"{DIGIT}/turn", angle=part["angles"][1], **moves)
        for one, swept in zip(turned["answers"], part["answers"], strict=True):
            assert one["probabilities"] == pytest.approx(swept["probabilities"][1], abs=1e-5)

    def test_moves_compose_of_flip_rotation_and_shift(self) -> None:
        image = torch.rand(1, 6, 6)
        assert torch.equal(Move(90.0, True)(image), torch.rot90(image.flip(-1), 1, (-2, -1)))
        assert torch.equal(Move(right=2, down=1)(image)[:, 1:, 2:], image[:, :-1, :-2])

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({"angle": "nan"}, "angle must be a number from"),
            ({"angle": "1e999"}, "angle must be a number from"),
            ({"right": "twelve"}, "right must be a number from"),
            ({"down": "-1000"}, "down must be a number from"),
        ],
    )
    def test_values_that_are_none_are_refused(self, client: TestClient, values: dict[str, str], words: str) -> None:
        response = client.get(f"{DIGIT}/turn", params=values)
        assert response.status_code == 400
        assert words in response.json()["error"]


class TestImages:
    @pytest.mark.parametrize(
        "content",
        [
            png(np.full((40, 30), 9, np.uint8)),
            png(np.full((40, 30, 3), 90, np.uint8), "JPEG"),
            png(np.full((40, 30, 4), 90, np.uint8)),
            png(np.full((40, 30), 40_000, np.uint16)),
            png(np.full((40, 30), 9, np.uint8), "GIF", save_all=True, append_images=[Image.new("L", (30, 40), 200)]),
            png(np.full((40, 30), 9, np.uint8), "WEBP"),
            png(np.full((40, 30), 9, np.uint8), "TIFF"),
        ],
        ids=["grey", "colour", "alpha", "16 bit", "animated", "webp", "tiff"],
    )
    def test_usual_ones_are_taken(self, client: TestClient, content: bytes) -> None:
        image = send(client, content).json()["image"]
        assert len(get(client, f"/api/scenes/digits/images/{image}/turn", angle=10)["answers"]) == 3
        shown = client.get(f"/api/scenes/digits/images/{image}.png")
        assert Image.open(io.BytesIO(shown.content)).size == (28, 28)

    @pytest.mark.parametrize(
        ("content", "status", "words"),
        [
            (b"", 400, "empty"),
            (b"hello", 415, "no image of a known format"),
            (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "no image of a known format"),
            (png(np.random.default_rng(0).integers(0, 255, (99, 99), dtype=np.uint8))[:3000], 415, "cannot be read"),
            (png(np.zeros((5000, 5000), np.uint8)), 415, "5,000 x 5,000 pixels, more than 24,000,000"),
            (png(np.zeros((9500, 9500), np.uint8)), 415, "pixels, more than"),
            (bytes(17 * 2**20), 413, "larger than 16 MB"),
        ],
        ids=["empty", "text", "svg", "truncated", "large", "bomb", "bytes"],
    )
    def test_others_are_refused_in_words(self, client: TestClient, content: bytes, status: int, words: str) -> None:
        response = send(client, content)
        assert response.status_code == status
        assert words in response.json()["error"]

    def test_dark_on_bright_is_inverted_and_it_is_said(self, client: TestClient) -> None:
        digit = load_digits()[0][1200, 0].numpy()
        answers = [send(client, png(pixels)).json() for pixels in (digit, 255 - digit)]
        assert "negative" in answers[1]["note"]
        turned = [get(client, f"/api/scenes/digits/images/{answer['image']}/turn") for answer in answers]
        assert turned[0]["pixels"] == turned[1]["pixels"]

    def test_bright_on_dark_is_inverted_for_a_model_of_dark_on_bright(self, client: TestClient, tmp_path: Path) -> None:
        scene = load_model(client, *model_files(tmp_path, mean=0.9, std=0.1)).json()["name"]
        note = send(client, png(load_digits()[0][1200, 0].numpy()), scene).json()["note"]
        assert "negative" in note
        assert "dark on bright" in note

    def test_a_drawing_is_made_like_the_digits_that_the_models_know(self, client: TestClient) -> None:
        digit = Image.fromarray(load_digits()[0][1200, 0].numpy())
        canvas = Image.new("L", (280, 280))
        canvas.paste(digit.resize((120, 120)), (150, 20))  # small, in a corner
        answer = client.post("/api/scenes/digits/images?drawn=1", content=png(np.asarray(canvas))).json()
        found = get(client, f"/api/scenes/digits/images/{answer['image']}/turn")["answers"]
        assert [np.argmax(one["probabilities"]) for one in found] == [2, 2, 2]

    @pytest.mark.parametrize("name", ["nothing", "..%2f..%2fetc%2fpasswd", "sample99"])
    def test_an_image_that_is_not_there(self, client: TestClient, name: str) -> None:
        response = client.get(f"/api/scenes/digits/images/{name}/turn")
        assert response.status_code == 404
        assert response.json()["error"]

    @pytest.mark.parametrize("path", ["/static/../server.py", "/static/%2e%2e/server.py", "/static//etc/passwd"])
    def test_files_outside_are_not_served(self, client: TestClient, path: str) -> None:
        assert client.get(path).status_code == 404


class TestInside:
    @pytest.mark.parametrize(("model", "moves"), MOVES_AT_90)
    def test_feature_maps_and_their_error(self, client: TestClient, model: int, moves: bool) -> None:
        found = get(client, f"{DIGIT}/maps", model=model, layer="stage2_block2", element=1)
        assert (found["error"] > 1e-3) == moves
        assert found["exact"]

    @pytest.mark.parametrize(("model", "moves"), MOVES_AT_90)
    def test_attention_of_a_pixel(self, client: TestClient, model: int, moves: bool) -> None:
        found = get(client, f"{DIGIT}/attention", model=model, layer="stage2_block2", element=1, row=0.0, column=0.999)
        assert (found["pixel"], found["moved_pixel"]) == ([0, 6], [0, 0])
        assert (found["error"] > 1e-3) == moves

    def test_a_pixel_that_is_moved_by_an_eighth_turn(self) -> None:
        model = gevit.create_model("r8_sa", "nano").eval()
        model.info = model.describe()
        contender, image = Contender("yours", model), torch.rand(1, 28, 28)
        found = attention(contender, image, "stage2_block1", 1, (0.5, 0.9))
        assert (found["pixel"], found["moved_pixel"]) == ((3, 6), (1, 5))
        with pytest.raises(ValueError, match="45° moves this pixel out of the image"):
            attention(contender, image, "stage2_block1", 1, (0.99, 0.99))

    @pytest.mark.parametrize(
        ("what", "values", "words"),
        [
            ("maps", {"layer": "stage9"}, "unknown layer 'stage9'; valid: lifting"),
            ("maps", {"model": 7}, "there are models 0 to 2"),
            ("maps", {"element": 4}, "element must be from 0 to 3"),
            ("maps", {"channel": 5000}, "has channels 0 to"),
            ("attention", {"layer": "lifting"}, "unknown layer with attention"),
            ("attention", {"row": 2}, "row must be a number from 0 to 1"),
        ],
    )
    def test_what_is_not_there_is_said(
        self, client: TestClient, what: str, values: dict[str, object], words: str
    ) -> None:
        response = client.get(f"{DIGIT}/{what}", params={name: str(value) for name, value in values.items()})
        assert response.status_code in (400, 404)
        assert words in response.json()["error"]


class TestGuard:
    @pytest.mark.parametrize(
        "headers",
        [
            {"host": "evil.example"},
            {"host": "127.0.0.1.evil.example"},
            {"host": ""},
            {"host": "[::1"},
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"origin": "http://127.0.0.1:9999"},
            {"origin": "https://127.0.0.1:8642"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ],
        ids=str,
    )
    def test_other_pages_are_refused(self, client: TestClient, headers: dict[str, str]) -> None:
        for response in (client.get("/api/lab", headers=headers), client.post("/api/models", headers=headers)):
            assert response.status_code == 403
            assert response.json()["error"]

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"host": "localhost:8642", "origin": "http://localhost:8642", "sec-fetch-site": "same-origin"},
            {"host": "[::1]:8642"},
            {"origin": HOST},
        ],
        ids=str,
    )
    def test_its_own_page_is_not(self, client: TestClient, headers: dict[str, str]) -> None:
        assert client.get("/api/lab", headers=headers).status_code == 200

    def test_a_link_to_the_page_is_fine(self, client: TestClient) -> None:
        assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200

    def test_names_of_a_server_for_others(self) -> None:
        assert is_own_name("192.168.1.5:80", "0.0.0.0")
        assert is_own_name("lab.example", "lab.example")
        assert not is_own_name("192.168.1.5:80", "127.0.0.1")
        assert not is_own_name("evil.example", "0.0.0.0")

    @pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/lab", "/api/nothing", "/nothing"])
    def test_every_answer_forbids_everything_from_outside(self, client: TestClient, path: str) -> None:
        response = client.get(path)
        policy = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
        assert policy.pop("default-src") == "'none'"
        assert set(policy.values()) <= {"'self'", "'none'"}
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in response.headers

    def test_the_page_names_no_other_host(self) -> None:
        static = Path(gevit.__file__).parent / "app" / "static"
        for path in static.iterdir():
            addresses = re.findall(r"(?:https?:|[\"'(=])//[^\s\"')]+", path.read_text("utf-8"))
            assert set(addresses) <= {"http://www.w3.org/2000/svg"}, path  # the name of a language, never asked for


def wait_for(client: TestClient, examination: str) -> Any:
    for _ in range(600):
        job = get(client, f"/api/examinations/{examination}")
        if job["state"] != "running":
            return job
        time.sleep(0.05)
    raise AssertionError("the examination does not end")


def start(client: TestClient, **values: object) -> Any:
    wanted = {"scene": "digits", "model": 0, "data": "scene", "images": 4} | values
    return client.post("/api/examinations", content=json.dumps(wanted))


def model_files(folder: Path, mean: float = 0.5, std: float = 0.5, **trained: str) -> tuple[bytes, bytes]:
    """Weights and information of a small model of three classes of grey images."""
    info = ModelInfo(
        name="r4_sa",
        preset="nano",
        in_channels=1,
        num_classes=3,
        classes=("bar", "cross", "dot"),
        image_size=20,
        mean=(mean,),
        std=(std,),
        trained=trained,
    )
    model = gevit.create_model("r4_sa", "nano", num_classes=3)
    gevit.save(model, info, folder / "model.safetensors")
    return (folder / "model.safetensors").read_bytes(), (folder / "model.json").read_bytes()


def archive_of(classes: tuple[str, ...]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in classes:
            for number in range(10):
                pixels = np.random.default_rng(number).integers(0, 255, (20, 20), dtype=np.uint8)
                archive.writestr(f"{name}/{number}.png", png(pixels))
    return file.getvalue()


def load_model(client: TestClient, weights: bytes, info: bytes) -> Any:
    return client.post(f"/api/models?info={len(info)}", content=info + weights)


class TestExamine:
    def test_a_loaded_model_on_uploaded_images(self, client: TestClient, tmp_path: Path) -> None:
        scene = load_model(client, *model_files(tmp_path)).json()
        assert scene["classes"] == ["bar", "cross", "dot"]
        data = client.post("/api/data", content=archive_of(("bar", "cross", "dot"))).json()["data"]
        job = wait_for(client, start(client, scene=scene["name"], data=data).json()["examination"])
        assert job["state"] == "done", job["problem"]
        result = job["result"]
        assert result["equivariant"]
        assert result["labelled"]["data"] == "uploaded images, test (3 of 30 images)"
        assert result["labelled"]["warnings"] == [], "nothing is known of what the model was trained on"
        names = {mistake["name"] for mistake in result["labelled"]["mistakes"]}
        assert names <= {f"{kind}/{number}.png" for kind in ("bar", "cross", "dot") for number in range(10)}
        assert len(result["labelled"]["accuracy"]) == len(result["angles"])
        report = client.get(f"/api/examinations/{job['examination']}/report.html")
        assert report.headers["content-disposition"].startswith("attachment")
        assert "</html>" in report.text
        assert names
        assert all(name in report.text for name in names)

    def test_images_that_may_have_been_trained_on(self, client: TestClient, tmp_path: Path) -> None:
        scene = load_model(client, *model_files(tmp_path, data_digest=f"{DIGEST_VERSION}1a")).json()
        data = client.post("/api/data", content=archive_of(("bar", "cross", "dot"))).json()["data"]
        job = wait_for(client, start(client, scene=scene["name"], data=data).json()["examination"])
        [warning] = job["result"]["labelled"]["warnings"]
        assert "may include" in warning
        assert "Warning" in client.get(f"/api/examinations/{job['examination']}/report.html").text

    def test_a_file_whose_name_is_no_text(self, client: TestClient, tmp_path: Path) -> None:
        scene = load_model(client, *model_files(tmp_path)).json()
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as archive:
            for kind, number in itertools.product(("bar", "cross", "dot"), range(6)):
                content = png(np.random.default_rng(number).integers(0, 255, (20, 20), dtype=np.uint8))
                entry = tarfile.TarInfo(f"{kind}/\udcff{number}.png")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        data = client.post("/api/data", content=file.getvalue()).json()["data"]
        job = wait_for(client, start(client, scene=scene["name"], data=data).json()["examination"])
        assert job["state"] == "done", job["problem"]
        assert "/\\udcff" in job["result"]["labelled"]["mistakes"][0]["name"]
        assert "/\\udcff" in client.get(f"/api/examinations/{job['examination']}/report.html").text

    def test_images_of_other_classes(self, client: TestClient, tmp_path: Path) -> None:
        scene = load_model(client, *model_files(tmp_path)).json()
        data = client.post("/api/data", content=archive_of(("bar", "dot"))).json()["data"]
        job = wait_for(client, start(client, scene=scene["name"], data=data).json()["examination"])
        assert job["state"] == "failed"
        assert "the model knows the classes bar, cross, dot, the archive has bar, dot" in job["problem"]

    def test_data_that_is_no_archive(self, client: TestClient) -> None:
        data = client.post("/api/data", content=b"hello").json()["data"]
        job = wait_for(client, start(client, data=data).json()["examination"])
        assert "cannot read the archive" in job["problem"]
        assert "gevit-lab" not in job["problem"]

    def test_one_at_a_time_and_cancelled(self, client: TestClient) -> None:
        first = start(client, images=500).json()["examination"]
        assert get(client, "/api/lab")["examination"] == first
        second = start(client)
        assert second.status_code == 503
        assert "another examination is running" in second.json()["error"]
        assert client.delete(f"/api/examinations/{first}").status_code == 204
        assert wait_for(client, first)["state"] == "cancelled"
        assert get(client, "/api/lab")["examination"] is None
        assert client.get(f"/api/examinations/{first}/report.html").status_code == 404

    @pytest.mark.parametrize(
        "body", [b"", b"[]", b"{}", b"[" * 5000, b'{"scene": 1, "model": "0", "data": 3, "images": 4}']
    )
    def test_wishes_that_are_none(self, client: TestClient, body: bytes) -> None:
        response = client.post("/api/examinations", content=body)
        assert response.status_code == 400
        assert response.json()["error"]

    def test_pickles_are_refused(self, client: TestClient, tmp_path: Path) -> None:
        _, info = model_files(tmp_path)
        torch.save({"weight": torch.zeros(3)}, tmp_path / "weights.pt")
        for weights in ((tmp_path / "weights.pt").read_bytes(), pickle.dumps({"a": 1})):
            response = load_model(client, weights, info)
            assert response.status_code == 415
            assert "pickle" in response.json()["error"]

    def test_files_that_are_no_model(self, client: TestClient, tmp_path: Path) -> None:
        weights, info = model_files(tmp_path)
        other = pretrained_path("r4_sa").with_suffix(".json").read_bytes()
        for files, words in {
            (weights[:2000], info): "model.safetensors is damaged or cut short",
            (weights, b"{}"): "model.json does not describe a model",
            (weights, other): "do not belong together",
            (b"", info): "model.safetensors",
        }.items():
            response = load_model(client, *files)
            assert response.status_code == 415
            assert words in response.json()["error"]
            assert "/" not in response.json()["error"].split(";")[0]

    def test_a_model_for_images_that_are_too_large(self, client: TestClient, tmp_path: Path) -> None:
        _, text = model_files(tmp_path)
        info = ModelInfo.from_json(json.dumps(json.loads(text) | {"image_size": 4000}))
        gevit.save(gevit.create_model("r4_sa", "nano", num_classes=3), info, tmp_path / "model.safetensors")
        files = (tmp_path / "model.safetensors").read_bytes(), (tmp_path / "model.json").read_bytes()
        assert "the lab shows up to 256x256" in load_model(client, *files).json()["error"]


def test_what_is_named_at_the_start(tmp_path: Path) -> None:
    model_files(tmp_path)
    (tmp_path / "images.zip").write_bytes(archive_of(("bar", "cross", "dot")))
    with TestClient(make_app(Lab(tmp_path / "model.safetensors", str(tmp_path / "images.zip"))), HOST) as client:
        overview = get(client, "/api/lab")
        assert overview["data"] == "images.zip"
        own = overview["scenes"][0]["name"]
        scene = get(client, f"/api/scenes/{own}")
        assert {sample["label"] for sample in scene["samples"]} == {0, 1, 2}
        turned = get(client, f"/api/scenes/{own}/images/{scene['samples'][0]['image']}/turn", angle=90)
        assert turned["answers"][0]["change"] < 1e-5


@pytest.mark.parametrize(("data", "name"), [(".", "photos"), ("..", "home"), ("/", "/"), ("~", "home")])
def test_a_folder_by_any_of_its_names(data: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "home" / "photos"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder.parent))
    with contextlib.closing(Lab(data=data)) as lab:
        assert lab.overview()["data"] == name


def test_a_scene_without_its_data_says_which_set_it_wants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEVIT_DATA", str(tmp_path))
    with TestClient(make_app(Lab()), HOST) as client:
        for name, wanted in (("satellite", "eurosat"), ("cells", "redcells"), ("digits", "")):
            scene = get(client, f"/api/scenes/{name}")
            assert scene["wanted"] == wanted
            assert bool(scene["samples"]) == (not wanted)
            assert (scene["models"][0]["role"], scene["models"][-1]["role"]) == ("equivariant", "plain")


def test_a_full_queue_says_so() -> None:
    with TestClient(make_app(Lab(), work=Work(longest=0)), HOST) as client:
        response = client.get(f"{DIGIT}/turn")
        assert response.status_code == 503
        assert "busy" in response.json()["error"]
        assert response.headers["retry-after"]


def test_nothing_is_left_behind() -> None:
    lab = Lab()
    with TestClient(make_app(lab), HOST) as client:
        client.post("/api/data", content=b"some bytes")
        assert list(lab.folder.iterdir())
    assert not lab.folder.exists()
