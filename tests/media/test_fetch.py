import asyncio
import socket
import ssl
import struct
from collections.abc import Sequence
from contextlib import closing

import pytest
import trustme

from mindserve.contract.request import PartKind
from mindserve.errors import InvalidRequest
from mindserve.media.content import Content, SizeBudget
from mindserve.media.fetch import Fetcher, Resolver, resolve, trusted_certificates
from mindserve.media.limits import MediaLimits
from mindserve.media.policy import AddressPolicy
from tests.media.servers import MediaServer, running_server

TOO_LARGE = "The size of image_url exceeds the limit of 40.00 MB."
PUBLIC = "203.1.113.7"


class Names:
    """A resolver with a script: each look-up of a name takes its next answer, and the last one stays."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self._answers = {name.replace("_", "."): list(lists) for name, lists in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, _port: int) -> Sequence[str]:
        self.asked.append(host)
        answers = self._answers.get(host)
        if not answers:
            raise OSError("no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]


async def fetched(
    url: str,
    *,
    allowed: str = "127.0.0.1",
    resolver: Resolver = resolve,
    limits: MediaLimits | None = None,
    certificates: ssl.SSLContext | None = None,
) -> bytes:
    fetcher = Fetcher(limits or MediaLimits(), resolver=resolver, certificates=certificates)
    with closing(Content(max_bytes=1000, too_large=TOO_LARGE, budget=SizeBudget(10_000_000))) as content:
        await fetcher.fetch(url, PartKind.IMAGE_URL, AddressPolicy.parse(allowed), content)
        return content.open().read()


async def refusal(url: str, **options: object) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await fetched(url, **options)  # type: ignore[arg-type]
    assert caught.value.param == "messages"
    return caught.value.message


async def test_body_arrives(media_server: MediaServer) -> None:
    media_server.file("/a.png?q=1", b"pixels")
    assert await fetched(media_server.url("/a.png?q=1")) == b"pixels"
    assert media_server.hosts == [f"127.0.0.1:{media_server.port}"]


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/a%2Fb%20c.png?x=%41&y=a+b", "/a%2Fb%20c.png?x=%41&y=a+b"),
        ("/bücher.png", "/b%C3%BCcher.png"),
        ("/a.png#part", "/a.png"),
        ("", "/"),
        ("?x=1", "/?x=1"),
        ("//a.png", "//a.png"),
    ],
)
async def test_path_is_sent_as_it_came(media_server: MediaServer, path: str, sent: str) -> None:
    await refusal(media_server.url(path))
    assert media_server.paths == [sent]


async def test_name_is_looked_up_once_and_kept_in_the_host_header(media_server: MediaServer) -> None:
    """The second answer would be another machine: nobody asks for it."""
    media_server.file("/a.png", b"pixels")
    names = Names(media_example=[["127.0.0.1"], ["10.0.0.1"]])
    url = media_server.url("/a.png", host="media.example")
    assert await fetched(url, allowed="media.example,127.0.0.1", resolver=names) == b"pixels"
    assert names.asked == ["media.example"]
    assert media_server.hosts == [f"media.example:{media_server.port}"]


async def test_listed_name_at_a_private_address(media_server: MediaServer) -> None:
    url = media_server.url("/x.png", host="media.example")
    for answers in (["127.0.0.1"], [PUBLIC, "127.0.0.1"], ["::ffff:127.0.0.1"], ["::1"]):
        message = await refusal(url, allowed="media.example", resolver=Names(media_example=[answers]))
        assert message == (
            "The media URL domain is not allowed: Domain 'media.example' resolves to an address that is not public"
        )
    assert media_server.connections == 0


async def test_unknown_name() -> None:
    message = await refusal("http://absent.example/x.png", allowed="absent.example", resolver=Names())
    assert message == "Download error: Domain 'absent.example' can not be resolved"


async def test_next_address_when_one_does_not_answer(media_server: MediaServer) -> None:
    media_server.file("/a.png", b"pixels")
    names = Names(media_example=[["127.0.0.2", "127.0.0.1"]])
    url = media_server.url("/a.png", host="media.example")
    assert await fetched(url, allowed="media.example,127.0.0.1,127.0.0.2", resolver=names) == b"pixels"


async def test_redirects_are_followed(media_server: MediaServer) -> None:
    media_server.redirect("/a.png", "/b/c.png", status="301 Moved Permanently")
    media_server.redirect("/b/c.png", "d.png", status="307 Temporary Redirect")
    media_server.redirect("/b/d.png", media_server.url("/e"), status="303 See Other")
    media_server.file("/e", b"pixels")
    assert await fetched(media_server.url("/a.png")) == b"pixels"
    assert media_server.paths == ["/a.png", "/b/c.png", "/b/d.png", "/e"]


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("http://127.0.0.2:{port}/x.png", "Domain '127.0.0.2' is not in allowed domain list"),
        ("http://localhost:{port}/x.png", "Domain 'localhost' is not in allowed domain list"),
        ("http://169.254.169.254/latest/meta-data/", "Domain '169.254.169.254' is not in allowed domain list"),
        ("http://[::ffff:169.254.169.254]/", "is not in allowed domain list"),
        ("http://[fd00:ec2::254]/", "is not in allowed domain list"),
        ("http://2130706433:{port}/x.png", "is not in allowed domain list"),
        ("http://0x7f.1:{port}/x.png", "is not in allowed domain list"),
        ("//evil.example/x.png", "Domain 'evil.example' is not in allowed domain list"),
        ("http://127.0.0.1@evil.example/x.png", "Domain 'evil.example' is not in allowed domain list"),
        ("http://user@127.0.0.1:{port}/x.png", "must not contain user information"),
        ("http://inner.example:{port}/x.png", "'inner.example' resolves to an address that is not public"),
        ("file:///etc/passwd", "The media URL is malformed"),
        ("gopher://127.0.0.1/x", "The media URL is malformed"),
        ("data:image/png;base64,AAAA", "Download error"),
        ("/x.html", "url must end with one of"),
        ("http://[::1", "Download error"),
        ("/" + "a" * 5000, "should be less than 4096"),
    ],
)
async def test_every_hop_is_checked(media_server: MediaServer, location: str, text: str) -> None:
    media_server.redirect("/r.png", location.format(port=media_server.port))
    names = Names(inner_example=[["10.0.0.9"]])
    message = await refusal(media_server.url("/r.png"), allowed="127.0.0.1,inner.example", resolver=names)
    assert text in message
    assert media_server.paths == ["/r.png"]


async def test_second_look_up_of_a_redirect_is_checked_again(media_server: MediaServer) -> None:
    """The name answers differently for the second hop: the new answer is checked, not trusted."""
    url = media_server.url("/r.png", host="media.example")
    media_server.redirect("/r.png", media_server.url("/x.png", host="media.example"))
    names = Names(media_example=[["127.0.0.1"], ["127.0.0.3"]])
    message = await refusal(url, allowed="media.example,127.0.0.1", resolver=names)
    assert "resolves to an address that is not public" in message
    assert media_server.paths == ["/r.png"]


async def test_redirects_have_an_end(media_server: MediaServer) -> None:
    media_server.redirect("/r.png", "/r.png")
    assert await refusal(media_server.url("/r.png")) == "Download error: too many redirects"
    assert len(media_server.paths) == MediaLimits().max_redirects + 1
    media_server.file("/empty.png", b"", status="302 Found")
    assert await refusal(media_server.url("/empty.png")) == "Download error: too many redirects"


@pytest.mark.parametrize("status", ["404 Not Found", "500 Oops", "204 No Content", "206 Partial Content", "300 Choose"])
async def test_other_statuses(media_server: MediaServer, status: str) -> None:
    media_server.file("/a.png", b"", status=status)
    assert await refusal(media_server.url("/a.png")) == f"Download error: the server answered {status[:3]}"


async def test_declared_size(media_server: MediaServer) -> None:
    """Refused before the body: the server never sends one."""
    media_server.raw("/a.png", b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n")
    assert await refusal(media_server.url("/a.png")) == TOO_LARGE
    media_server.raw("/b.png", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n")
    assert (await refusal(media_server.url("/b.png"))) in (TOO_LARGE, "Download error")


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_undeclared_size(media_server: MediaServer, is_chunked: bool) -> None:
    """A body without an end is cut off at the limit."""
    sent = 0

    async def pour(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n" + b"Transfer-Encoding: chunked\r\n" * is_chunked + b"\r\n")
        while sent < 50_000_000:
            writer.write(b"3E8\r\n" + b"a" * 1000 + b"\r\n" if is_chunked else b"a" * 1000)
            await writer.drain()
            sent += 1000

    media_server.answers["/a.png"] = pour
    assert await refusal(media_server.url("/a.png")) == TOO_LARGE
    assert sent < 50_000_000


async def test_short_body(media_server: MediaServer) -> None:
    media_server.raw("/a.png", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    assert await refusal(media_server.url("/a.png")) == "Download error"


async def test_compressed_body(media_server: MediaServer) -> None:
    media_server.file("/a.png", b"\x1f\x8b", headers="Content-Encoding: gzip\r\n")
    assert await refusal(media_server.url("/a.png")) == "Download error: the server compressed its answer"


@pytest.mark.parametrize("answer", [b"", b"\x00\x01nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000])
async def test_no_http(media_server: MediaServer, answer: bytes) -> None:
    media_server.raw("/a.png", answer)
    assert await refusal(media_server.url("/a.png")) == "Download error"


async def test_nobody_listens(media_server: MediaServer) -> None:
    assert await refusal("http://127.0.0.1:1/x.png") == "Download error"


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n\r\nsome"])
async def test_silent_server(media_server: MediaServer, head: bytes) -> None:
    async def stall(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await writer.drain()
        await asyncio.sleep(30)

    media_server.answers["/a.png"] = stall
    limits = MediaLimits(read_timeout_s=0.05)
    assert await refusal(media_server.url("/a.png"), limits=limits) == "Read timed out after 0.05 seconds."


async def test_server_that_does_not_accept() -> None:
    """A listener whose queue is full: the connection stays half open."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        message = await refusal(f"http://127.0.0.1:{address[1]}/x.png", limits=MediaLimits(connect_timeout_s=0.05))
        for filler in fillers:
            filler.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            filler.close()
    assert message == "Connection timed out after 0.05 seconds."


async def test_slow_look_up() -> None:
    async def never(_host: str, _port: int) -> Sequence[str]:
        await asyncio.sleep(30)
        return []

    limits = MediaLimits(connect_timeout_s=0.05)
    message = await refusal("http://a.example/x.png", allowed="a.example", resolver=never, limits=limits)
    assert message == "Connection timed out after 0.05 seconds."


async def test_proxies_of_the_environment_are_not_asked(
    media_server: MediaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    media_server.file("/a.png", b"pixels")
    assert await fetched(media_server.url("/a.png")) == b"pixels"


async def test_connections_are_closed(media_server: MediaServer) -> None:
    media_server.file("/a.png", b"pixels")
    await fetched(media_server.url("/a.png"))
    await refusal(media_server.url("/absent.png"))
    await asyncio.wait_for(media_server.idle.wait(), 10)
    assert media_server.connections == 2


async def test_cancelling_closes_the_connection(media_server: MediaServer) -> None:
    waits = asyncio.Event()
    is_closed = asyncio.Event()

    async def stall(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nsome")
        await writer.drain()
        waits.set()
        while not writer.is_closing():
            writer.write(b"a")
            await asyncio.sleep(0.01)
            try:
                await writer.drain()
            except ConnectionError:
                break
        is_closed.set()

    media_server.answers["/a.png"] = stall
    task = asyncio.create_task(fetched(media_server.url("/a.png")))
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(is_closed.wait(), 10)


async def test_tls_checks_the_name_not_the_address() -> None:
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("media.example").configure_cert(tls)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    names = Names(media_example=[["127.0.0.1"]], other_example=[["127.0.0.1"]])
    allowed = "media.example,other.example,127.0.0.1"
    async with running_server(tls) as server:
        server.file("/a.png", b"pixels")
        url = server.url("/a.png", host="media.example", scheme="https")
        assert await fetched(url, allowed=allowed, resolver=names, certificates=client) == b"pixels"
        other = server.url("/a.png", host="other.example", scheme="https")
        assert await refusal(other, allowed=allowed, resolver=names, certificates=client) == "Download error"
        assert await refusal(url, allowed=allowed, resolver=names) == "Download error"
        assert server.hosts == [f"media.example:{server.port}"]


def test_certificates_are_verified_by_default() -> None:
    context = trusted_certificates()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.get_ca_certs()


async def test_system_resolver() -> None:
    assert await resolve("127.0.0.1", 80) == ["127.0.0.1"]
    with pytest.raises(OSError):
        await resolve("name.invalid", 80)
