"""The lab without its server: scenes, images and what can be asked of them. Threads may share it."""

from __future__ import annotations

import dataclasses
import tempfile
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from gevit.app import inside
from gevit.app.digits import like_mnist
from gevit.app.examining import Examinations, Job
from gevit.app.pixels import as_base64, as_rgb
from gevit.app.scenes import SHIPPED, YOURS, Contender, Scene, check_model
from gevit.app.store import Recent
from gevit.app.turning import Move, Turning
from gevit.app.uploads import Refused, decode_upload, is_pickle, name_of_content
from gevit.data import DataSet, list_datasets
from gevit.evaluation.matching import open_matching
from gevit.evaluation.predict import contrast, looks_inverted
from gevit.models.base import info_of
from gevit.models.info import ModelInfo
from gevit.persistence import WEIGHTS, load

MOST_IMAGES, MOST_MODELS, MOST_SETS = 512, 4, 2
MINE = "yours"
PICKLED = (
    "these weights are pickled (.pt, .pth, .ckpt), and a pickle can run any program: they are not opened; save the "
    "model with gevit.save, or take model.safetensors and model.json of a run of gevit train"
)
NAMED, OF_SCENE = "named", "scene"  # which data: that named when the lab was started, or the scene's own


@dataclass(frozen=True)
class Picture:
    """An image as the models of its scene see it.

    Attributes:
        pixels: in [0, 1].
        label: its class, if it is known.
        note: what was done to it, in words.
    """

    pixels: Float[Tensor, "channels side side"]
    label: int | None = None
    note: str = ""


class Lab:
    """Everything that the page can ask for.

    Args:
        checkpoint: a model of the user's, shown beside the shipped ones.
        data: a data set, folder or archive of the user's images.
    """

    def __init__(self, checkpoint: Path | None = None, data: str | None = None) -> None:
        self._data = data
        self._scenes: Recent[str, Scene] = Recent(len(SHIPPED) + MOST_MODELS)
        self._pictures: Recent[tuple[str, str], Picture] = Recent(MOST_IMAGES)
        self._archives: Recent[str, Path] = Recent(MOST_SETS)
        self._turning = Turning()
        self.examinations = Examinations()
        self._opening = threading.Lock()
        self._own: Scene | None = None
        if data is not None and data not in list_datasets() and not Path(data).expanduser().exists():
            raise FileNotFoundError(f"no folder or archive {data}; expected a folder of images for each class")
        if checkpoint is not None:
            model = check_model(load(checkpoint))
            images = open_matching(info_of(model), data) if data is not None else None
            self._own = Scene(MINE, f"Your {info_of(model).name}", [Contender(YOURS, model)], images)
        self._folder = tempfile.TemporaryDirectory(prefix="gevit-lab-")
        self.folder = Path(self._folder.name)

    def close(self) -> None:
        """Stop what is running, and leave nothing behind."""
        self.examinations.close()
        self._folder.cleanup()

    def overview(self) -> dict[str, Any]:
        """The scenes by name, the user's own first; images of the user's, and the examination that runs, if any."""
        own = [self._own.summary()] if self._own else []
        shipped = [one.summary(name) for name, one in SHIPPED.items() if one.weights()]
        data = None if self._data is None else Path(self._data).expanduser().resolve().name or self._data
        return {"scenes": own + shipped, "data": data, "examination": self.examinations.running}

    def add_model(self, weights: bytes, info: bytes) -> dict[str, Any]:
        """Take a model: the contents of its two files."""
        name = f"model-{name_of_content(info + weights)}"
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            path = Path(folder, WEIGHTS)
            path.write_bytes(weights)
            path.with_suffix(".json").write_bytes(info)
            try:
                model = check_model(load(path))
            except ValueError as error:
                reason = PICKLED if is_pickle(weights) else str(error).replace(f"{folder}/", "")
                raise Refused(415, reason.replace(f" in {folder}", "")) from error
        self._scenes[name] = Scene(name, f"Your {info_of(model).name}", [Contender(YOURS, model)])
        return self.describe(name)

    def add_data(self, archive: Path) -> dict[str, Any]:
        """Take an archive of images, a file in `folder` that is ours."""
        for _, old in self._archives.make_room():
            old.unlink(missing_ok=True)
        self._archives[archive.stem] = archive
        return {"data": archive.stem}

    def scene(self, name: str) -> Scene:
        """The scene of this name, opened if it is not yet."""
        if self._own and name == self._own.name:
            return self._own
        scene = self._scenes.get(name)
        if scene is None and name in SHIPPED and SHIPPED[name].weights():
            with self._opening:
                scene = self._scenes.get(name) or SHIPPED[name].open(name)
                self._scenes[name] = scene
        if scene is None:
            raise Refused(404, "there is no such model here (any more); choose another one, or load yours again")
        return scene

    def describe(self, name: str) -> dict[str, Any]:
        """A scene with its samples."""
        scene = self.scene(name)
        images, labels = scene.samples
        samples = []
        for number, (pixels, label) in enumerate(zip(images, labels.tolist(), strict=True)):
            self._pictures[name, f"sample{number}"] = Picture(pixels, label)
            samples.append({"image": f"sample{number}", "label": label})
        return scene.describe() | {"samples": samples}

    def add_image(self, name: str, content: bytes, drawn: bool) -> dict[str, Any]:
        """Take an image file; one that was drawn is made like the digits that the models know."""
        info = self.scene(name).info
        pixels = decode_upload(content, info.image_size, info.in_channels)
        note = ""
        if drawn:
            pixels = like_mnist(pixels)
        elif looks_inverted(pixels, info):
            pixels, note = 1 - pixels, f"Shown as its negative: these models know {contrast(info)}."
        image = name_of_content(content + (b"drawn" if drawn else b""))
        self._pictures[name, image] = Picture(pixels, note=note)
        return {"image": image, "note": note}

    def picture(self, scene: str, image: str) -> Picture:
        """An image of a scene."""
        picture = self._pictures.get((scene, image))
        if picture is None and image.startswith("sample"):
            self.describe(scene)  # its samples may have been forgotten
            picture = self._pictures.get((scene, image))
        if picture is None:
            raise Refused(404, "this image is not here any more; choose it again")
        return picture

    def colours(self, scene: str, image: str) -> bytes:
        """An image as bytes of red, green and blue."""
        return as_rgb(self.picture(scene, image).pixels, self.scene(scene).info)

    def turn(self, scene: str, image: str, move: Move) -> dict[str, Any]:
        """The moved image and the answers to it."""
        found = self._turning.turn(self.scene(scene), image, self.picture(scene, image).pixels, move)
        return self._with_colours(found, "pixels", scene)

    def sweep(self, scene: str, image: str, move: Move, part: int) -> dict[str, Any]:
        """Answers over the full turn, a part of them."""
        return self._turning.sweep(self.scene(scene), image, self.picture(scene, image).pixels, move, part)

    def maps(self, scene: str, image: str, model: int, layer: str, element: int, channel: int | None) -> dict[str, Any]:
        """Feature maps of the image and of the moved image."""
        contender = self.contender(scene, model)
        _check_element(contender, element)
        found = inside.feature_maps(contender, self.picture(scene, image).pixels, layer, element, channel)
        return self._with_colours(found, "moved", scene)

    def attention(
        self, scene: str, image: str, model: int, layer: str, element: int, place: tuple[float, float]
    ) -> dict[str, Any]:
        """Where a pixel of the image looks, and where it looks in the moved image."""
        contender = self.contender(scene, model)
        _check_element(contender, element)
        found = inside.attention(contender, self.picture(scene, image).pixels, layer, element, place)
        return self._with_colours(found, "moved", scene)

    def contender(self, scene: str, number: int) -> Contender:
        """A model of a scene."""
        contenders = self.scene(scene).contenders
        if not 0 <= number < len(contenders):
            raise Refused(404, f"there are models 0 to {len(contenders) - 1} of these images, got {number}")
        return contenders[number]

    def examine(self, scene: str, number: int, data: str, images: int) -> Job:
        """Start to examine a model on the scene's own images, on those named at the start, or on uploaded ones."""
        contender, own = self.contender(scene, number), self.scene(scene).data
        archive = self._archives.get(data)
        if data == OF_SCENE and own is not None:
            return self.examinations.start(contender, lambda: own, images)
        if data == NAMED and self._data is not None:
            return self.examinations.start(contender, partial(open_matching, contender.info, self._data), images)
        if archive is not None:
            return self.examinations.start(contender, partial(_open_upload, contender.info, archive), images)
        raise Refused(404, "these images are not here any more; upload them again")

    def _with_colours(self, found: dict[str, Any], key: str, scene: str) -> dict[str, Any]:
        return found | {key: as_base64(as_rgb(found[key], self.scene(scene).info))}


def _open_upload(info: ModelInfo, archive: Path) -> DataSet:
    try:
        return dataclasses.replace(open_matching(info, str(archive)), name="uploaded images")
    except ValueError as error:
        reason = str(error).replace(str(archive), "the archive").replace(archive.name, "the archive")
        raise ValueError(reason) from error


def _check_element(contender: Contender, element: int) -> None:
    if not 0 <= element < contender.acting.order:
        raise Refused(400, f"element must be from 0 to {contender.acting.order - 1}, got {element}")
