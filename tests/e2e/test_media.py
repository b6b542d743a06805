"""Pictures, videos and sounds over HTTP: a model that names colours and pitches, in every form that a part may have."""

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindserve.cli.compose import compose
from mindserve.errors import ModelLoadError
from mindserve.settings.values import EngineSettings, Precision
from tests.media.samples import audio_bytes, base64_of, image_bytes, picture, tone, video_bytes

from .colour_models import NOTHING, write_colour_model
from .conftest import GOLDENS, native
from .fold import Json, assert_same
from .servers import Server, eventually, settings

RGB = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "white": (255, 255, 255), "black": (0, 0, 0)}
HERTZ = {"low": 440, "high": 2000}
WORDS = {"type": "text", "text": "What is it?"}


def _video(colour: str, codec: str, container: str) -> bytes:
    return video_bytes([np.full((48, 64, 3), RGB[colour], np.uint8)] * 12, codec=codec, container=container)


def _sound(pitch: str, codec: str, container: str, rate: int = 16_000) -> bytes:
    return audio_bytes(tone(rate, 1.0, HERTZ[pitch]), rate, codec, container)


FILES = {
    "red.png": ("image_url", "image/png", image_bytes(picture(colour=RGB["red"])), "mostly red."),
    "blue.jpg": ("image_url", "image/jpeg", image_bytes(picture(colour=RGB["blue"]), "JPEG"), "mostly blue."),
    "green.mp4": ("video_url", "video/mp4", _video("green", "libx264", "mp4"), "mostly green."),
    "white.avi": ("video_url", "video/x-msvideo", _video("white", "mpeg4", "avi"), "mostly white."),
    "black.wmv": ("video_url", "video/x-ms-wmv", _video("black", "wmv2", "asf"), "mostly black."),
    "low.wav": ("audio_url", "audio/x-wav", _sound("low", "pcm_s16le", "wav"), "tone is low."),
    "high.mp3": ("audio_url", "audio/mpeg", _sound("high", "libmp3lame", "mp3", 44_100), "tone is high."),
    "high.flac": ("audio_url", "audio/flac", _sound("high", "flac", "flac", 48_000), "tone is high."),
}
"""Name, kind of part, MIME type, content, and how the answer ends."""


@pytest.fixture(scope="module")
def media_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    for name, (_, _, content, _) in FILES.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def origin(media_dir: Path) -> Iterator[str]:
    """Base URL of a web server with the same files; its address is one that the operator lists."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(media_dir)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALLOWED_MEDIA_DOMAINS_ENV", "127.0.0.1")
        yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_colour_model(tmp_path_factory.mktemp("models") / "colours")


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory, model: Path, media_dir: Path) -> Iterator[Server]:
    with native(tmp_path_factory.mktemp("prepared"), path=model, media_dir=media_dir) as up:
        yield up


def asked(*parts: Json, **fields: Any) -> Json:
    return {"messages": [{"role": "user", "content": [*parts]}], "temperature": 0, **fields}


def image(colour: str, width: int = 64, height: int = 48) -> Json:
    content = image_bytes(picture(width, height, RGB[colour]))
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64_of(content)}"}}


def sound(pitch: str) -> Json:
    data = base64_of(_sound(pitch, "pcm_s16le", "wav"))
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def content(answer: Json) -> str:
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    return choice["message"]["content"]


def forms(name: str, origin: str, media_dir: Path) -> Iterator[Json]:
    """Every form that the contract gives for this file."""
    kind, mime, data, _ = FILES[name]
    for address in (name, str(media_dir / name), f"{origin}/{name}"):
        yield {"type": kind, kind: address}
        yield {"type": kind, kind: {"url": address}}
    yield {"type": kind, kind: {"url": f"file://{name}"}}
    yield {"type": kind, kind: {"url": f"file://{media_dir / name}"}}
    yield {"type": kind, kind: {"url": f"data:{mime};base64,{base64_of(data)}"}}
    if kind == "image_url":
        yield {"type": kind, kind: base64_of(data)}
    if kind == "audio_url":
        extension = name.rpartition(".")[2]
        yield {"type": "input_audio", "input_audio": {"data": base64_of(data), "format": extension}}


@pytest.mark.parametrize("name", FILES)
def test_every_form_of_a_part_is_understood(colours: Server, origin: str, media_dir: Path, name: str) -> None:
    expected = FILES[name][3]
    for part in forms(name, origin, media_dir):
        body = asked(part, WORDS)
        assert content(colours.full(body)).endswith(expected), part
        assert content(colours.streamed(body)).endswith(expected), part


@pytest.mark.parametrize("colour", RGB)
def test_colours_are_named_streamed_or_not(colours: Server, colour: str) -> None:
    body = asked(image(colour), WORDS, logprobs=True)
    full, streamed = colours.full(body), colours.streamed(body)
    assert content(full) == f"The picture is mostly {colour}."
    assert_same(streamed["choices"], full["choices"])


@pytest.mark.parametrize("pitch", HERTZ)
def test_pitches_are_named(colours: Server, pitch: str) -> None:
    assert content(colours.full(asked(sound(pitch), WORDS))) == f"The tone is {pitch}."


def test_without_media_it_is_a_text_model(colours: Server) -> None:
    assert content(colours.full(asked(WORDS))) == NOTHING


def test_larger_pictures_take_more_tokens(colours: Server) -> None:
    small, large = (colours.full(asked(image("red", *size), WORDS)) for size in ((56, 56), (560, 280)))
    tokens = [answer["usage"]["prompt_tokens"] for answer in (small, large)]
    assert tokens[1] - tokens[0] == 20 * 10 - 2 * 2
    assert content(large) == content(small) == "The picture is mostly red."


def test_several_pictures_are_seen_together(colours: Server) -> None:
    """Red, green and blue in equal parts are no colour; blue in the majority is."""
    parts = [image(colour) for colour in ("red", "blue", "blue", "blue", "blue")]
    assert content(colours.full(asked(parts[0], WORDS, *parts[1:]))) == "The picture is mostly blue."


def test_pictures_of_earlier_messages_count(colours: Server) -> None:
    messages: list[Json] = [
        {"role": "user", "content": [image("green", 112, 112), WORDS]},
        {"role": "assistant", "content": "The picture is mostly green."},
        {"role": "user", "content": "Are you sure?"},
    ]
    first = colours.full({"messages": messages, "temperature": 0})
    assert content(first) == "The picture is mostly green."
    second = colours.full({"messages": [*messages[:2], {"role": "user", "content": "Really?"}], "temperature": 0})
    assert content(second) == "The picture is mostly green."
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 16


def test_the_same_words_about_another_picture(colours: Server) -> None:
    answers = [colours.full(asked(image(colour, 140, 140), WORDS)) for colour in ("red", "blue", "red")]
    assert [content(answer)[-5:] for answer in answers] == [" red.", "blue.", " red."]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached[2] > 25 > cached[1]


def test_many_at_once(colours: Server) -> None:
    """Text, pictures and sounds in the same batches."""
    bodies = [asked(WORDS), *(asked(image(colour), WORDS) for colour in RGB), *(asked(sound(p), WORDS) for p in HERTZ)]
    alone = [content(colours.full(body)) for body in bodies]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda body: content(colours.streamed(body)), bodies * 4))
    assert together == alone * 4
    assert len(set(alone)) == 8


def test_placeholders_in_a_users_text_are_refused(colours: Server) -> None:
    """They would be taken for media that nobody sent."""
    response = colours.post(asked(image("red"), {"type": "text", "text": "<|image_pad|>"}))
    assert response.status_code == 422
    assert "2 media placeholders where the messages have 1" in response.json()["error"]


def test_broken_media_are_refused_by_their_number(colours: Server) -> None:
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64_of(b"no picture")}}
    response = colours.post(asked(image("red"), broken, stream=True))
    assert response.status_code == 422
    assert "2 of 2" in response.json()["error"]


def test_media_that_do_not_fit_a_prompt_are_refused(colours: Server) -> None:
    response = colours.post(asked(*[image("red", 980, 980)] * 3))
    assert response.status_code == 424
    eventually(lambda: colours.service.engine.stats().running == 0)


@pytest.mark.parametrize(
    ("family", "taken"),
    [("qwen2", ""), ("qwen2-vl", "image video"), ("qwen2.5-vl", "image video"), ("qwen2-audio", "audio")],
)
def test_models_take_what_they_were_made_for(family: str, taken: str, tmp_path: Path) -> None:
    """Hugging Face directories of tiny random models: anything may be answered, but for kinds that they do not take."""
    parts = {"image": image("red"), "audio": sound("low")}
    with native(tmp_path, path=GOLDENS / family / "model") as up:
        for kind, part in parts.items():
            body = asked(part, WORDS, max_tokens=5, ignore_eos=True)
            if kind in taken:
                answer = up.full(body)
                assert answer["usage"]["completion_tokens"] == 5
                assert_same(up.streamed(body)["choices"], answer["choices"])
            else:
                response = up.post(body)
                assert response.status_code == 422
                assert kind in response.json()["error"]


async def test_a_model_without_its_preprocessor_does_not_start(tmp_path: Path) -> None:
    shutil.copytree(GOLDENS / "qwen2-vl" / "model", tmp_path / "model")
    (tmp_path / "model" / "preprocessor_config.json").unlink()
    config = settings(EngineSettings(precision=Precision.F32, prepared_dir=tmp_path), path=tmp_path / "model")
    with pytest.raises(ModelLoadError, match=r"preprocessor_config\.json is missing"):
        await compose(config, report=lambda what, share: None)
