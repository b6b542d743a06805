import io
import struct
import zlib
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from mindserve.errors import InvalidRequest
from mindserve.media.image import decode_image
from tests.media.samples import audio_bytes, image_bytes, picture, png_header, tone

MAX_PIXELS = 1_000_000


def decode(content: bytes, max_pixels: int = MAX_PIXELS) -> Image.Image:
    image = decode_image(io.BytesIO(content), max_pixels=max_pixels)
    assert image.mode == "RGB"
    return image


def refusal(content: bytes) -> str:
    with pytest.raises(InvalidRequest) as caught:
        decode(content)
    assert caught.value.param == "messages"
    return caught.value.message


def is_near(pixel: object, colour: tuple[int, int, int], tolerance: int = 4) -> bool:
    return bool(np.abs(np.array(pixel) - np.array(colour)).max() <= tolerance)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG"])
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (33, 17), (200, 3), (64, 48)])
def test_sizes(file_format: str, size: tuple[int, int]) -> None:
    image = decode(image_bytes(picture(*size), file_format))
    assert image.size == size
    assert is_near(image.getpixel((0, 0)), (200, 30, 60))


def test_progressive_jpg() -> None:
    assert decode(image_bytes(picture(), "JPEG", progressive=True)).size == (64, 48)


def test_several_pictures_in_a_jpg() -> None:
    """Phones write such files; the first picture counts."""
    many = image_bytes(picture(), "MPO", save_all=True, append_images=[picture(20, 20, (0, 0, 0))])
    image = decode(many)
    assert image.size == (64, 48)
    assert is_near(image.getpixel((0, 0)), (200, 30, 60))


def test_frames_of_an_animated_png() -> None:
    animated = image_bytes(picture(), "PNG", save_all=True, append_images=[picture(colour=(0, 0, 0))] * 5)
    assert is_near(decode(animated).getpixel((0, 0)), (200, 30, 60))


@pytest.mark.parametrize(
    ("orientation", "size", "red_corner"),
    [
        (1, (40, 20), (0, 0)),
        (2, (40, 20), (39, 0)),
        (3, (40, 20), (39, 19)),
        (4, (40, 20), (0, 19)),
        (5, (20, 40), (0, 0)),
        (6, (20, 40), (19, 0)),
        (7, (20, 40), (19, 39)),
        (8, (20, 40), (0, 39)),
    ],
)
@pytest.mark.parametrize("file_format", ["PNG", "JPEG"])
def test_orientation(orientation: int, size: tuple[int, int], red_corner: tuple[int, int], file_format: str) -> None:
    image = Image.new("RGB", (40, 20), (0, 0, 255))
    image.paste((255, 0, 0), (0, 0, 10, 10))
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = decode(image_bytes(image, file_format, exif=exif, **({"quality": 95} if file_format == "JPEG" else {})))
    assert upright.size == size
    assert is_near(upright.getpixel(red_corner), (255, 0, 0), 10)
    opposite = (size[0] - 1 - red_corner[0], size[1] - 1 - red_corner[1])
    assert is_near(upright.getpixel(opposite), (0, 0, 255), 10)


def test_alpha_shows_white() -> None:
    image = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    image.putpixel((1, 0), (0, 0, 0, 128))
    decoded = decode(image_bytes(image))
    assert decoded.getpixel((0, 0)) == (255, 255, 255)
    assert is_near(decoded.getpixel((1, 0)), (127, 127, 127), 1)


def test_grey_with_alpha() -> None:
    image = Image.new("LA", (2, 1), (90, 255))
    image.putpixel((1, 0), (90, 0))
    decoded = decode(image_bytes(image))
    assert [decoded.getpixel((x, 0)) for x in range(2)] == [(90, 90, 90), (255, 255, 255)]


def test_palette() -> None:
    image = picture().quantize(4)
    assert decode(image_bytes(image)).getpixel((0, 0)) == (200, 30, 60)


def test_palette_with_transparency() -> None:
    image = Image.new("P", (2, 1), 0)
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    decoded = decode(image_bytes(image, transparency=0))
    assert [decoded.getpixel((x, 0)) for x in range(2)] == [(255, 255, 255), (40, 50, 60)]


def test_transparent_colour() -> None:
    image = picture(2, 1)
    image.putpixel((1, 0), (1, 2, 3))
    decoded = decode(image_bytes(image, transparency=(1, 2, 3)))
    assert [decoded.getpixel((x, 0)) for x in range(2)] == [(200, 30, 60), (255, 255, 255)]


@pytest.mark.parametrize(("mode", "colour", "expected"), [("L", 90, (90, 90, 90)), ("1", 1, (255, 255, 255))])
def test_grey(mode: str, colour: int, expected: tuple[int, int, int]) -> None:
    assert decode(image_bytes(Image.new(mode, (3, 3), colour))).getpixel((0, 0)) == expected


def test_sixteen_bits_a_grey() -> None:
    grey = Image.fromarray(np.full((5, 4), 0x8010, np.uint16))
    assert decode(image_bytes(grey)).getpixel((0, 0)) == (128, 128, 128)


def test_sixteen_bits_a_colour() -> None:
    row = b"\0" + struct.pack(">3H", 0x8000, 0x4000, 0xFFFF)
    png = png_header(1, 1, zlib.compress(row)).replace(
        struct.pack(">IIBB", 1, 1, 8, 2), struct.pack(">IIBB", 1, 1, 16, 2)
    )
    head, tail = png[: 8 + 8 + 13], png[8 + 8 + 13 + 4 :]
    png = head + struct.pack(">I", zlib.crc32(head[12:])) + tail
    assert decode(png).getpixel((0, 0)) == (128, 64, 255)


def test_cmyk() -> None:
    jpg = image_bytes(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    assert is_near(decode(jpg).getpixel((3, 3)), (255, 0, 0), 12)


@pytest.mark.parametrize("file_format", ["GIF", "BMP", "TIFF", "WEBP", "PPM", "ICO", "PDF", "DDS", "TGA"])
def test_other_formats_by_their_content(file_format: str) -> None:
    assert refusal(image_bytes(picture(), file_format)) == "Invalid image content, check the input image"


def test_many_gif_frames() -> None:
    gif = image_bytes(picture(), "GIF", save_all=True, append_images=[picture(colour=(0, n, 0)) for n in range(50)])
    assert refusal(gif) == "Invalid image content, check the input image"


@pytest.mark.parametrize("file_format", ["PNG", "JPEG"])
def test_any_damage_is_seen_or_refused(file_format: str) -> None:
    """Never another error, whatever bytes change."""
    content = image_bytes(picture(), file_format)
    random = np.random.default_rng(7)
    for _ in range(100):
        damaged = bytearray(content)
        for place in random.integers(len(content), size=random.integers(1, 6)):
            damaged[place] = random.integers(256)
        with suppress(InvalidRequest):
            assert decode(bytes(damaged)).width


def broken_files() -> list[bytes]:
    png, jpg = image_bytes(picture()), image_bytes(picture(300, 200), "JPEG")
    return [
        b"",
        b"hello",
        b"\x89PNG\r\n\x1a\n",
        png[:30],
        png[: len(png) // 2],
        png[:50] + b"\0\0\0\0" + png[54:],
        b"\xff\xd8\xff",
        jpg[:100],
        jpg[: len(jpg) * 3 // 4],
        png_header(10, 10, b"not zlib"),
        png_header(10, 10, zlib.compress(b"\0" * 5)),
        png_header(0, 10),
        b"\0" * 1000,
        audio_bytes(tone(16000), 16000, "pcm_s16le", "wav"),
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
    ]


@pytest.mark.parametrize("content", broken_files(), ids=range(len(broken_files())))
def test_broken(content: bytes) -> None:
    assert refusal(content) == "Invalid image content, check the input image"


def test_bomb_is_refused_by_its_header() -> None:
    """The pixels are never decoded: there are none."""
    assert refusal(png_header(1001, 1000)) == "The image has 1001000 pixels, more than 1000000"
    assert refusal(png_header(30_000, 30_000)) == "Invalid image content, check the input image"
    assert refusal(png_header(2**31 - 1, 2**31 - 1)) == "Invalid image content, check the input image"


def test_largest_image() -> None:
    assert decode(image_bytes(Image.new("1", (1000, 1000)))).size == (1000, 1000)


def test_bomb_in_a_text_chunk() -> None:
    text = b"Comment\0\0" + zlib.compress(b"\0" * 50_000_000)
    chunk = struct.pack(">I", len(text)) + b"zTXt" + text + struct.pack(">I", zlib.crc32(b"zTXt" + text))
    png = image_bytes(picture())
    start = png.index(b"IDAT") - 4
    assert refusal(png[:start] + chunk + png[start:]) == "Invalid image content, check the input image"


def test_scan_bomb() -> None:
    """A progressive JPG may go over its pixels again and again."""
    jpg = image_bytes(picture(), "JPEG", progressive=True)
    last_scan = jpg[jpg.rindex(b"\xff\xda") : -2]
    assert decode(jpg).size == (64, 48)
    assert refusal(jpg[:-2] + last_scan * 250 + jpg[-2:]) == "Invalid image content, check the input image"
