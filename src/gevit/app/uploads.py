"""What clients send: never more than was agreed, never slower, never under a name of theirs."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from io import BytesIO
from typing import BinaryIO

from jaxtyping import Float
from starlette.requests import ClientDisconnect, Request
from torch import Tensor

from gevit.data.decode import UnreadableImage, probe, read_image, without_bomb_warnings

MEBIBYTE = 2**20
# An image of a phone fits; what is scaled down to a few thousand pixels anyway need not be larger.
MOST_IMAGE_BYTES, MOST_IMAGE_PIXELS = 16 * MEBIBYTE, 24_000_000
MOST_WEIGHTS_BYTES, MOST_INFO_BYTES, MOST_DATA_BYTES = 256 * MEBIBYTE, MEBIBYTE, 512 * MEBIBYTE
SECONDS_FOR_IMAGE, SECONDS_FOR_FILE = 20, 180


class Refused(Exception):  # noqa: N818 - the client's fault, not ours
    """A request that is not served.

    Attributes:
        status: the code of HTTP that says why.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read_body(request: Request, most: int = MOST_IMAGE_BYTES, seconds: float = SECONDS_FOR_IMAGE) -> bytes:
    """The body of a request."""
    body = BytesIO()
    await copy_body(request, body, most, seconds)
    return body.getvalue()


async def copy_body(request: Request, file: BinaryIO, most: int, seconds: float) -> None:
    """Write the body of a request to a file of ours."""
    too_large = Refused(413, f"the file is larger than {most // MEBIBYTE:,} MB, the most that is taken")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise too_large
    received = 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in _chunks(request):
                received += len(chunk)
                if received > most:
                    raise too_large
                file.write(chunk)
    except TimeoutError:
        raise Refused(408, f"the file did not arrive within {seconds:g} seconds") from None
    if not received:
        raise Refused(400, "the file is empty")


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise Refused(400, "the file did not arrive whole") from None


def decode_upload(content: bytes, size: int, channels: int) -> Float[Tensor, "channels size size"]:
    """An image file as pixels in [0, 1]; what is none, or too large, is refused in words."""
    try:
        with without_bomb_warnings():
            header = probe(BytesIO(content))
        if header.width * header.height > MOST_IMAGE_PIXELS:
            raise ValueError(
                f"it has {header.width:,} x {header.height:,} pixels, more than {MOST_IMAGE_PIXELS:,}; "
                "scale it down first"
            )
        return read_image(BytesIO(content), size, channels).clamp(0, 1)
    except ImportError:
        raise
    except UnreadableImage as error:
        raise Refused(415, f"this image cannot be read: {error.reason}") from error
    except Exception as error:  # decoders raise whatever they like at a damaged header
        raise Refused(415, f"this image cannot be read: {error or type(error).__name__}") from error


def is_pickle(content: bytes) -> bool:
    """Whether a file that is not what it should be is a pickle, or weights that torch pickled, by its first bytes."""
    is_safetensors = content[8:9] == b"{"  # after a length, which may begin with any byte
    return content.startswith((b"\x80", b"PK\x03\x04")) and not is_safetensors


def name_of_content(content: bytes) -> str:
    """What an upload is called here: its digest, whatever it was called there."""
    return hashlib.sha256(content).hexdigest()[:24]
