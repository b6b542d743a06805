import errno
import os
from collections.abc import Callable, Iterator
from io import BytesIO

import pytest

from mindserve.contract.request import PartKind
from mindserve.errors import InvalidRequest, Overloaded
from mindserve.media.content import Content, SizeBudget, chunks_of
from mindserve.media.inline import decode_base64
from tests.media.descriptors import open_files
from tests.media.samples import base64_of

MakeContent = Callable[..., Content]


@pytest.fixture
def content() -> Iterator[MakeContent]:
    made: list[Content] = []

    def make(max_bytes: int = 10, budget: SizeBudget | None = None) -> Content:
        made.append(Content(max_bytes=max_bytes, too_large="too large", budget=budget or SizeBudget(1000)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_same_bytes_same_digest(content: MakeContent) -> None:
    first, second, third = content(), content(), content()
    first.write_all([b"abc", b"def"])
    second.write_all([b"a", b"bcdef"])
    third.write_all([b"abcdeg"])
    assert first.digest() == second.digest() != third.digest()
    assert first.size_bytes == 6
    assert first.open().read() == first.open().read() == b"abcdef"


def test_limit(content: MakeContent) -> None:
    exact = content()
    exact.write(b"a" * 10)
    with pytest.raises(InvalidRequest, match="too large"):
        exact.write(b"a")
    with pytest.raises(InvalidRequest, match="too large"):
        content().announce(11)


def test_budget_of_a_request(content: MakeContent) -> None:
    budget = SizeBudget(1024 * 1024)
    content(2**30, budget).write(b"a" * 1024 * 1024)
    with pytest.raises(InvalidRequest, match=r"The total media input cannot exceed 1.0 MB\."):
        content(2**30, budget).write(b"a")


def test_large_content_lies_in_a_file_without_a_name(content: MakeContent) -> None:
    before = open_files()
    large = content(2**30, SizeBudget(2**30))
    large.write_all([b"a" * 1024 * 1024] * 6)
    (descriptor,) = open_files().keys() - before.keys()
    assert "(deleted)" in open_files()[descriptor]
    large.close()
    large.close()
    assert open_files() == before


def test_abandoned_content_can_not_be_read(content: MakeContent) -> None:
    one = content()
    one.write(b"abc")
    file = one.open()
    assert file.read(1) == b"a"
    assert file.tell() == 1
    one.abandon()
    with pytest.raises(OSError, match="abandoned"):
        file.read(1)


def test_full_disk(content: MakeContent, monkeypatch: pytest.MonkeyPatch) -> None:
    full = content()

    def fail(_chunk: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(full._file, "write", fail)
    with pytest.raises(Overloaded, match="disk space"):
        full.write(b"a")


def test_chunks() -> None:
    assert b"".join(chunks_of(BytesIO(b"abc" * 1_000_000))) == b"abc" * 1_000_000


@pytest.mark.parametrize("size", [1, 2, 3, 4, 786_431, 786_432, 786_433, 2_000_000])
def test_base64(size: int) -> None:
    data = os.urandom(size)
    assert b"".join(decode_base64(base64_of(data), PartKind.IMAGE_URL)) == data


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "abc",
        "hello world",
        "ab=c",
        "====",
        "YWJj\n",
        " YWJj",
        "YWJ-",
        "YWJé",
        "YQ==YQ==",
        "A" * 1048572 + "YQ==YQ==",
    ],
)
def test_wrong_base64(payload: str) -> None:
    with pytest.raises(InvalidRequest, match="Invalid base64 url"):
        list(decode_base64(payload, PartKind.IMAGE_URL))
    with pytest.raises(InvalidRequest, match=r"'input_audio\.data' should be base64 encoded data, and the"):
        list(decode_base64(payload, PartKind.INPUT_AUDIO))
