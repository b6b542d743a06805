"""JPG and PNG files to RGB pixels, upright, without alpha."""

from typing import IO, Final

import numpy as np
from PIL import Image, ImageOps

from mindserve.errors import InvalidRequest

INVALID: Final = "Invalid image content, check the input image"
TOO_MANY_PIXELS: Final = "The image has {pixels} pixels, more than {limit}"

_MAX_SCANS: Final = 200
"""Of a progressive JPG: each is a pass over all pixels, and takes but a few bytes of file."""
_SCAN_MARKER: Final = b"\xff\xda"


def decode_image(file: IO[bytes], *, max_pixels: int) -> Image.Image:
    """An RGB image; the content, not a name, says what it is. Raises InvalidRequest."""
    try:
        with Image.open(file, formats=("JPEG", "PNG")) as image:
            _check_size(image, max_pixels)
            _check_scans(image, file)
            return _as_rgb(ImageOps.exif_transpose(image))
    except InvalidRequest:
        raise
    except Exception as error:  # decoders raise anything at broken content
        raise InvalidRequest(INVALID, param="messages") from error


def _check_size(image: Image.Image, max_pixels: int) -> None:
    """From the header, before any pixel is decoded."""
    pixels = image.width * image.height
    if pixels > max_pixels:
        raise InvalidRequest(TOO_MANY_PIXELS.format(pixels=pixels, limit=max_pixels), param="messages")


def _check_scans(image: Image.Image, file: IO[bytes]) -> None:
    if image.format == "PNG":
        return
    position = file.tell()
    file.seek(0)
    scans = file.read().count(_SCAN_MARKER)
    file.seek(position)
    if scans > _MAX_SCANS:
        raise InvalidRequest(INVALID, param="messages")


def _as_rgb(image: Image.Image) -> Image.Image:
    """Transparent pixels show white, 16-bit greys keep their high byte."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    page = Image.new("RGBA", layer.size, (255, 255, 255, 255))
    return Image.alpha_composite(page, layer).convert("RGB")
