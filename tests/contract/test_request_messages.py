"""Messages: roles, content, calls, media parts, the size of the whole."""

from typing import Any

import pytest
from tests.contract.asking import HELLO, MULTIMODAL, TOOL, VLLM, accepted, refused, user

from mindserve.contract.context import ValidationContext
from mindserve.contract.request import MediaPart, Message, PartKind, TextPart

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": "dot.png"}


def assistant(**fields: Any) -> list[dict[str, Any]]:
    return [*HELLO, {"role": "assistant", **fields}]


def call(**fields: Any) -> list[dict[str, Any]]:
    return assistant(tool_calls=[CALL, {**CALL, **fields}])


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (None, "Request param contains not messages or messages null"),
        ([], "Request param messages not arr or arr is empty"),
        ({}, "Request param messages not arr or arr is empty"),
        ([1], "Request param contains not role or role null"),
        ([{"content": "x"}], "Request param contains not role or role null"),
        ([{"role": None, "content": "x"}], "Request param contains not role or role null"),
        ([{"role": 1, "content": "x"}], "Request param role must be string"),
        ([{"role": "", "content": "x"}], "Request param role must be not empty"),
        ([{"role": "user"}], "Request param contains not content or content null"),
        ([{"role": "observation", "content": ""}], "Request param content len should not be 0"),
        ([{"role": "user", "content": 5}], "The type of inputs is abnormal"),
        (user(), "Inputs arr is empty"),
        (assistant(), "Request param contains not content or content null"),
        (assistant(content=""), 'Request param "content" should not be empty'),
        (assistant(content=5), 'Request param "content" arguments expected to be a string'),
        (assistant(content="", tool_calls=[]), 'Request param "content" should not be empty'),
        (assistant(tool_calls=[]), "Request param contains not content or content null"),
        (assistant(tool_calls=None), "Request param contains not content or content null"),
        (assistant(content=[], tool_calls=[CALL]), "Inputs arr is empty"),
        (assistant(tool_calls="x"), "Tool call param must be an array of objects"),
        (assistant(tool_calls=["x"]), "Tool call param must be an array of objects"),
        (call(id=None), "Tool call param contains no id."),
        (call(id=7), 'Tool call param "id" arguments expected to be a string'),
        (call(type="x"), "The type of the tool. Currently, only function is supported."),
        (call(type=["function"]), "The type of the tool. Currently, only function is supported."),
        (call(function=None), "Tool call param contains no function that the model called."),
        (call(function={"arguments": "{}"}), "Tool call param contains no function name"),
        (call(function={"name": 5, "arguments": "{}"}), "Tool call param function name expected to be a string"),
        (call(function={"name": "f"}), "Tool call param contains no function arguments"),
        (
            call(function={"name": "f", "arguments": {}}),
            "Tool call param function arguments expected to be a string",
        ),
        (
            call(function={"name": "f g", "arguments": "{}"}),
            "The name of function must be a-z, A-Z, 0-9, common chinese characters, underscores and dashe "
            "within max length of 64, unexpected function name: f g",
        ),
        (
            [{"role": "tool", "content": "x"}],
            "Request param contains not tool_call_id or tool_call_id null while role is tool",
        ),
        (
            [{"role": "tool", "content": "x", "tool_call_id": ""}],
            "Request param tool_call_id len should not be 0 while role is tool",
        ),
        ([{"role": "user", "content": "x", "tool_call_id": 7}], "The type of tool_call_id is abnormal"),
    ],
)
def test_refused(messages: object, text: str) -> None:
    assert refused(messages=messages).message == text


def test_texts_beside_tools() -> None:
    assert refused(messages=None, tools=[TOOL]).message == "Request param messages is null"
    assert refused(messages=[], tools=[TOOL]).message == "Request param messages is not arr or arr is empty"


def test_the_error_says_which_message() -> None:
    assert refused(messages=[*HELLO, {"role": "user", "content": ""}]).param == "messages[1]"


def test_messages_as_read() -> None:
    messages = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"text": "c"}], "name": "Ann"},
        {"role": "assistant", "tool_calls": [CALL], "reasoning_content": "hm"},
        {"role": "tool", "content": "d", "tool_call_id": "call_1"},
        {"role": "observation", "content": "e", "metadata": None},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
    ]
    assert accepted(messages=messages).messages == (
        Message(role="system", content="a"),
        Message(role="user", content="bc", extra={"name": "Ann"}),
        Message(role="assistant", content=None, tool_calls=(CALL,), extra={"reasoning_content": "hm"}),
        Message(role="tool", content="d", tool_call_id="call_1"),
        Message(role="observation", content="e", extra={"metadata": None}),
        Message(role="assistant", content="", tool_calls=(CALL,)),
    )


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("x", "The type of inputs is abnormal"),
        ({"type": "pdf_url", "pdf_url": "x"}, "Input type pdf_url does not match the mm type."),
        ({"type": 5}, "Input type 5 does not match the mm type."),
        ({"type": ["text"], "text": "x"}, "Input type [...] does not match the mm type."),
        ({"type": "text"}, "Request param text must be string"),
        ({"type": "text", "text": 5}, "Request param text must be string"),
        ({"type": "text", "text": ""}, "Request param text should not be empty"),
        ({"type": "image_url"}, "Request param image_url null"),
        ({"type": "video_url", "video_url": None}, "Request param video_url null"),
        ({"type": "audio_url", "audio_url": None}, "Request param audio_url null"),
        ({"type": "image_url", "image_url": 5}, "Input of image_url should be str or dict."),
        ({"type": "image_url", "image_url": {}}, "Request param image_url.url must be string"),
        ({"type": "image_url", "image_url": {"url": None}}, "Request param image_url.url must be string"),
        ({"type": "image_url", "image_url": ""}, "Request param image_url should not be empty"),
        ({"type": "input_audio", "input_audio": "x"}, "Input of input_audio should be dict."),
    ],
)
def test_part_refused(part: object, text: str) -> None:
    assert refused(MULTIMODAL, messages=user({"type": "text", "text": "x"}, part)).message == text


@pytest.mark.parametrize("part", [{}, {"foo": 1}, {"text": "x", "image_url": "y"}, {"image_url": None}])
def test_part_without_type_must_be_clear(part: dict[str, Any]) -> None:
    assert "content part without type" in refused(MULTIMODAL, messages=user(part)).message


def test_part_without_type() -> None:
    parts = accepted(MULTIMODAL, messages=user({"text": "x", "image_url": None}, {"video_url": {"url": "a.mp4"}}))
    assert parts.messages[0].content == (TextPart(text="x"), MediaPart(kind=PartKind.VIDEO_URL, source="a.mp4"))


AUDIO_TEXT = (
    "'input_audio.data' should be base64 encoded data, "
    "and the 'input_audio.format' should be in ['mp3', 'wav', 'flac']."
)


@pytest.mark.parametrize(
    "audio",
    [
        {},
        {"data": "aGk="},
        {"format": "wav"},
        {"data": "", "format": "wav"},
        {"data": 5, "format": "wav"},
        {"data": "aGk=", "format": "ogg"},
        {"data": "aGk=", "format": 5},
    ],
)
def test_audio_needs_data_and_format(audio: dict[str, Any]) -> None:
    assert refused(MULTIMODAL, messages=user({"type": "input_audio", "input_audio": audio})).message == AUDIO_TEXT


@pytest.mark.parametrize("audio_format", ["mp3", "WAV", "Flac"])
def test_audio_format_in_any_case(audio_format: str) -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": audio_format}}
    (message,) = accepted(MULTIMODAL, messages=user(audio)).messages
    expected = MediaPart(kind=PartKind.INPUT_AUDIO, source="aGk=", format=audio_format.lower())
    assert message.content == (expected,)


MIME_TYPES = {
    "image_url": ["image/jpeg", "image/png"],
    "video_url": ["video/mp4", "video/x-msvideo", "video/x-ms-wmv"],
    "audio_url": ["audio/mpeg", "audio/x-wav", "audio/flac"],
}


@pytest.mark.parametrize("kind", MIME_TYPES)
def test_mime_types_are_the_tables(kind: str) -> None:
    others = [mime for key, types in MIME_TYPES.items() if key != kind for mime in types]
    for mime in MIME_TYPES[kind]:
        for spelling in (mime, mime.upper()):
            address = f"data:{spelling};base64,aGk="
            (message,) = accepted(MULTIMODAL, messages=user({"type": kind, kind: {"url": address}})).messages
            assert message.content == (MediaPart(kind=PartKind(kind), source=address),)
    wrong = [f"data:{mime};base64,aGk=" for mime in (*others, "image/gif", "text/plain", "")]
    for address in (*wrong, "data:", "data:image/png,aGk=", "data:image/png;charset=x;base64,aGk=", "DATA:image/png"):
        error = refused(MULTIMODAL, messages=user({"type": kind, kind: address}))
        assert error.message == "Expected format: data:<mime_type>/<subtype>;base64,<base64_data>"


def test_addresses_are_not_looked_up() -> None:
    for address in ("http://127.0.0.1/x.png", "file:///etc/passwd", "../x.png", "aGVsbG8=", "nonsense"):
        (message,) = accepted(MULTIMODAL, messages=user({"type": "image_url", "image_url": address})).messages
        assert message.content == (MediaPart(kind=PartKind.IMAGE_URL, source=address),)


def test_media_count_is_per_request() -> None:
    ten = user(*[IMAGE] * 10)
    assert accepted(MULTIMODAL, messages=[*ten, *ten])
    error = refused(MULTIMODAL, messages=[*ten, *ten, *user(IMAGE)])
    assert error.message == "The number of multimodal url should be no more than 20"


def test_model_without_the_medium() -> None:
    assert refused(VLLM, messages=user(IMAGE)).message == "The model does not support image_url input"
    images_only = ValidationContext(models={"m": None}, media=frozenset([PartKind.IMAGE_URL]))
    assert accepted(images_only, messages=user(IMAGE))
    audio = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}
    assert refused(images_only, messages=user(audio)).message == "The model does not support input_audio input"


def test_media_is_not_for_assistants_nor_beside_tools() -> None:
    error = refused(MULTIMODAL, messages=assistant(content=[IMAGE]))
    assert error.message == 'Request param "content" arguments expected to be a string'
    assert "Check open ai req parameter error" in refused(MULTIMODAL, messages=user(IMAGE), tools=[TOOL]).message
    assert accepted(MULTIMODAL, messages=user(IMAGE), tools=[TOOL], tool_choice="none")


def text_of(chars: int) -> list[dict[str, str]]:
    """Messages whose JSON has exactly so many characters."""
    frame = len('[{"role":"user","content":""}]')
    return [{"role": "user", "content": "ä" * (chars - frame)}]


def test_size_of_messages_in_characters() -> None:
    limit = 4 * 1024 * 1024
    assert accepted(messages=text_of(limit))
    error = refused(messages=text_of(limit + 1))
    assert error.message == f"Messages len not in (0, {limit}], but the length of inputs is {limit + 1}"


def test_configured_size_of_messages() -> None:
    context = ValidationContext(models={"m": None}, max_messages_chars=1000)
    assert accepted(context, messages=text_of(1000))
    assert "1001" in refused(context, messages=text_of(1001)).message
    assert accepted(context, messages=HELLO, user="x" * 5000)


def test_many_messages_are_measured_before_they_are_read() -> None:
    context = ValidationContext(models={"m": None}, max_messages_chars=1000)
    many = [{"role": "user", "content": "x"}] * 100 + [{"role": "user", "content": ""}]
    assert "Messages len not in" in refused(context, messages=many).message


def test_base64_is_not_counted() -> None:
    context = ValidationContext(models={"m": None}, media=frozenset(PartKind), max_messages_chars=1000)
    payload = "A" * 5000
    for part in (
        {"type": "image_url", "image_url": payload},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{payload}"}},
        {"type": "input_audio", "input_audio": {"data": payload, "format": "wav"}},
    ):
        assert accepted(context, messages=user(part))
        assert "Messages len" in refused(context, messages=user(part, {"type": "text", "text": "x" * 1000})).message


@pytest.mark.parametrize(
    ("kind", "megabytes", "text"),
    [
        ("input_audio", 20, "The size of input_audio cannot exceed 20.0 MB"),
        ("image_url", 40, "The size of image cannot exceed 40.0 MB"),
        ("audio_url", 40, "The size of audio_url cannot exceed 40.0 MB"),
    ],
)
def test_base64_has_limits_of_its_own(kind: str, megabytes: int, text: str) -> None:
    allowed = "A" * (megabytes * 1024 * 1024 // 3 * 4)
    value: Any = {"data": allowed, "format": "wav"} if kind == "input_audio" else allowed
    assert accepted(MULTIMODAL, messages=user({"type": kind, kind: value}))
    value = {"data": allowed + "AAAAAAAA", "format": "wav"} if kind == "input_audio" else allowed + "AAAAAAAA"
    assert refused(MULTIMODAL, messages=user({"type": kind, kind: value})).message == text
