"""The server: addresses in, a call of the lab, JSON out. It binds to this machine alone unless it is told otherwise."""

from __future__ import annotations

import contextlib
import json
import math
import secrets
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from gevit.app.examining import Job, shown
from gevit.app.guard import Guard
from gevit.app.lab import Lab
from gevit.app.turning import PARTS, Move
from gevit.app.uploads import (
    MOST_DATA_BYTES,
    MOST_INFO_BYTES,
    MOST_WEIGHTS_BYTES,
    SECONDS_FOR_FILE,
    Refused,
    copy_body,
    read_body,
)
from gevit.app.work import Busy, Gate, Gone, Work

STATIC = Path(__file__).parent / "static"
STYLE = STATIC.parents[1] / "rendering" / "templates" / "style.css"
LARGEST_SHIFT, MOST_EXAMINED = 64, 1000
MOST_IMAGES_AT_ONCE, MOST_FILES_AT_ONCE = 20, 2  # that are on their way to us


def make_app(lab: Lab, host: str = "127.0.0.1", work: Work | None = None) -> ASGIApp:
    """The application that serves a lab.

    Args:
        lab: what it serves.
        host: where it listens, which decides what names it answers to.
        work: the queue of work; a new one if not given.
    """
    queue = work or Work()
    slow = Work()  # what takes seconds, so that nobody's dial waits for it
    images, files = Gate(MOST_IMAGES_AT_ONCE), Gate(MOST_FILES_AT_ONCE)

    async def overview(request: Request) -> Response:
        return JSONResponse(lab.overview() | {"parts": PARTS})

    async def show_scene(request: Request) -> Response:
        return JSONResponse(await slow.run(request, lab.describe, request.path_params["scene"]))

    async def add_image(request: Request) -> Response:
        with images.passed():
            content = await read_body(request)
        drawn = _flag(request, "drawn")
        return JSONResponse(await queue.run(request, lab.add_image, request.path_params["scene"], content, drawn))

    async def show_image(request: Request) -> Response:
        colours = await queue.run(request, lab.colours, *_image(request))
        return Response(_png(colours), media_type="image/png")

    async def turn(request: Request) -> Response:
        return JSONResponse(await queue.run(request, lab.turn, *_image(request), _move(request)))

    async def sweep(request: Request) -> Response:
        part = int(_number(request, "part", 0, PARTS - 1))
        return JSONResponse(await queue.run(request, lab.sweep, *_image(request), _move(request), part))

    async def maps(request: Request) -> Response:
        channel = int(_number(request, "channel", 0, 10**6)) if request.query_params.get("channel") else None
        return JSONResponse(await queue.run(request, lab.maps, *_image(request), *_layer(request), channel))

    async def attention(request: Request) -> Response:
        place = _number(request, "row", 0, 1), _number(request, "column", 0, 1)
        return JSONResponse(await queue.run(request, lab.attention, *_image(request), *_layer(request), place))

    async def add_model(request: Request) -> Response:
        size = int(_number(request, "info", 1, MOST_INFO_BYTES))
        with files.passed():
            content = await read_body(request, MOST_WEIGHTS_BYTES, SECONDS_FOR_FILE)
            return JSONResponse(await slow.run(request, lab.add_model, content[size:], content[:size]))

    async def add_data(request: Request) -> Response:
        path = lab.folder / f"upload-{secrets.token_hex(8)}.archive"
        try:
            with files.passed(), path.open("xb") as file:
                await copy_body(request, file, MOST_DATA_BYTES, SECONDS_FOR_FILE)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return JSONResponse(lab.add_data(path))

    async def start_examination(request: Request) -> Response:
        wanted = _examination(await read_body(request, most=10_000))
        return JSONResponse((await slow.run(request, lab.examine, *wanted)).describe(), status_code=202)

    async def show_examination(request: Request) -> Response:
        job = _job(request)
        return JSONResponse(job.describe() | ({"result": shown(job.result)} if job.result else {}))

    async def cancel_examination(request: Request) -> Response:
        _job(request).cancelled.set()
        return Response(status_code=204)

    async def show_report(request: Request) -> Response:
        job = _job(request)
        if job.result is None:
            raise Refused(404, "this examination is not finished: there is no report of it")
        headers = {"Content-Disposition": f'attachment; filename="{job.result.info.name}-examined.html"'}
        return HTMLResponse(job.report, headers=headers)

    def _job(request: Request) -> Job:
        job = lab.examinations.get(request.path_params["examination"])
        if job is None:
            raise Refused(404, "this examination is not here any more; start it again")
        return job

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        lab.close()
        queue.close()
        slow.close()

    image = "/api/scenes/{scene}/images/{image}"
    app = Starlette(
        routes=[
            Route("/", lambda _: FileResponse(STATIC / "index.html")),
            Route("/static/style.css", lambda _: FileResponse(STYLE)),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/api/lab", overview),
            Route("/api/scenes/{scene}", show_scene),
            Route("/api/scenes/{scene}/images", add_image, methods=["POST"]),
            Route(f"{image}.png", show_image),
            Route(f"{image}/turn", turn),
            Route(f"{image}/sweep", sweep),
            Route(f"{image}/maps", maps),
            Route(f"{image}/attention", attention),
            Route("/api/models", add_model, methods=["POST"]),
            Route("/api/data", add_data, methods=["POST"]),
            Route("/api/examinations", start_examination, methods=["POST"]),
            Route("/api/examinations/{examination}", show_examination),
            Route("/api/examinations/{examination}", cancel_examination, methods=["DELETE"]),
            Route("/api/examinations/{examination}/report.html", show_report),
        ],
        exception_handlers={
            Refused: _refuse,
            Busy: _refuse,
            Gone: _refuse,
            ValueError: _refuse,
            404: _not_found,
            405: _not_found,
            Exception: _apologise,
        },
        lifespan=lifespan,
    )
    return Guard(app, host)


def _image(request: Request) -> tuple[str, str]:
    return request.path_params["scene"], request.path_params["image"]


def _move(request: Request) -> Move:
    angle = _number(request, "angle", -3600, 3600) % 360
    right, down = (int(_number(request, name, -LARGEST_SHIFT, LARGEST_SHIFT)) for name in ("right", "down"))
    return Move(angle, _flag(request, "flip"), right, down)


def _layer(request: Request) -> tuple[int, str, int]:
    """Which model, layer and element."""
    layer = request.query_params.get("layer", "lifting")
    return int(_number(request, "model", 0, 100)), layer, int(_number(request, "element", 0, 1000))


def _examination(body: bytes) -> tuple[str, int, str, int]:
    """Scene, model, data and number of images."""
    try:
        wanted = json.loads(body)
        scene, model, data, images = (wanted[name] for name in ("scene", "model", "data", "images"))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Refused(400, "expected a JSON object with scene, model, data and images") from None
    if not (isinstance(scene, str) and isinstance(data, str) and type(model) is int and type(images) is int):
        raise Refused(400, "scene and data must be text, model and images integers")
    if not 1 <= images <= MOST_EXAMINED:
        raise Refused(400, f"images must be from 1 to {MOST_EXAMINED:,}, got {images}")
    return scene, model, data, images


def _number(request: Request, name: str, low: int, high: int) -> float:
    text = request.query_params.get(name, "0")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise Refused(400, f"{name} must be a number from {low} to {high}, got {text[:40]!r}")
    return value


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "0") not in ("", "0", "false")


def _png(colours: bytes) -> bytes:
    """A square image, from its bytes of red, green and blue."""
    from PIL import Image

    side = math.isqrt(len(colours) // 3)
    file = BytesIO()
    Image.frombytes("RGB", (side, side), colours).save(file, "PNG")
    return file.getvalue()


async def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, Gone):
        return Response(status_code=499)
    if isinstance(error, Busy):
        return JSONResponse({"error": str(error)}, status_code=503, headers={"Retry-After": "1"})
    return JSONResponse({"error": str(error)}, status_code=getattr(error, "status", 400))


async def _not_found(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "there is nothing at this address"}, status_code=getattr(error, "status_code", 404))


async def _apologise(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "this is a bug in gevit; the terminal shows where"}, status_code=500)
