import pytest

from mindserve.contract.request import MediaPart, PartKind
from mindserve.errors import InvalidRequest
from mindserve.media.source import InlineSource, LocalSource, RemoteSource, find_source
from tests.media.samples import audio_part, image_part, input_audio, video_part

BASE64_JPG = "/9j/4AAQSkZJRgABAQAAAQABAAD+AAAAAA=="


@pytest.mark.parametrize(
    ("part", "source"),
    [
        (image_part("demo.png"), LocalSource(path="demo.png")),
        (image_part("/data/multimodal_inputs/a/DEMO.JPEG"), LocalSource(path="/data/multimodal_inputs/a/DEMO.JPEG")),
        (image_part("file://demo.png"), LocalSource(path="demo.png")),
        (image_part("FILE:///data/demo.jpg"), LocalSource(path="/data/demo.jpg")),
        (image_part("file:///data/no-extension"), LocalSource(path="/data/no-extension")),
        (image_part("../../etc/passwd"), LocalSource(path="../../etc/passwd")),
        (image_part(BASE64_JPG), InlineSource(payload=BASE64_JPG)),
        (image_part("hello world"), InlineSource(payload="hello world")),
        (image_part("data:image/png;base64,AAAA"), InlineSource(payload="AAAA")),
        (video_part("DATA:video/x-ms-wmv;base64,AAAA"), InlineSource(payload="AAAA")),
        (image_part("http://a.example/x.png"), RemoteSource(url="http://a.example/x.png")),
        (audio_part("HTTPS://a.example/x"), RemoteSource(url="HTTPS://a.example/x")),
        (video_part("clip.wmv"), LocalSource(path="clip.wmv")),
        (audio_part("talk.FLAC"), LocalSource(path="talk.FLAC")),
        (input_audio(b"abc", "wav"), InlineSource(payload="YWJj")),
    ],
)
def test_forms(part: MediaPart, source: object) -> None:
    assert find_source(part) == source


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (image_part("x.gif"), "The media type is image_url, url must end with one of ['jpg', 'jpeg', 'png']"),
        (image_part("x.mp4"), "url must end with one of"),
        (video_part("x.png"), "The media type is video_url, url must end with one of ['mp4', 'avi', 'wmv']"),
        (audio_part("file://x.ogg"), "The media type is audio_url, url must end with one of ['mp3', 'wav', 'flac']"),
        (video_part("aGVsbG8="), "Input type video_url does not match the mm type."),
        (audio_part("aGVsbG8="), "Input type audio_url does not match the mm type."),
        (image_part("a b.png"), "The media url contains dangerous characters, only allow a-zA-Z0-9_-."),
        (image_part("file://a\0b.png"), "dangerous characters"),
        (image_part("file://a%2e%2e/b.png"), "dangerous characters"),
        (image_part("~root/.ssh;x.png"), "dangerous characters"),
        (image_part("a" * 4092 + ".png"), "The length of media_url should be less than 4096, but got 4096."),
        (image_part("http://a.example/" + "a" * 4100), "should be less than 4096, but got 4117."),
        (image_part("ftp://a.example/x.png"), "must start with http://, https://, file:// or data:, but got ftp"),
        (image_part("gopher://a.example/x"), "but got gopher"),
        (audio_part("concat:/etc/passwd|x.mp3"), "but got concat"),
    ],
)
def test_refused(part: MediaPart, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        find_source(part)
    assert text in caught.value.message
    assert caught.value.param == "messages"


def test_every_kind_has_forms() -> None:
    for kind in PartKind:
        assert find_source(MediaPart(kind=kind, source="data:;base64,AAAA")) is not None
