"""Malformed and hostile HTTP and JSON on raw sockets: a clear refusal or a closed connection, never a fallen server."""

import contextlib
import json

import pytest

from tests.api.raw import answer, chunked, head, posted, received
from tests.api.running import Running, chat

GOOD = json.dumps(chat(max_tokens=2)).encode()
CLOSE = "Connection: close\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"


def asked(server: Running, data: bytes, *, ends: bool = False) -> bytes:
    """Everything that comes back; `ends`: our half of the connection ends after the data."""
    with server.connect() as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
            if ends:
                connection.shutdown(1)
        return received(connection)


@pytest.fixture(autouse=True)
def _still_there(server: Running):
    yield
    assert server.post(chat()).status_code == 200


BAD_BODIES = {
    "empty": b"",
    "cut": GOOD[:-3],
    "not utf-8": GOOD.replace(b"Hello", b"\xff\xfe"),
    "utf-16": GOOD.decode().encode("utf-16"),
    "lone surrogate": GOOD.replace(b"Hello", b"\\ud800"),
    "nan": GOOD[:-1] + b', "top_p": NaN}',
    "infinity": GOOD[:-1] + b', "top_p": Infinity}',
    "trailing comma": GOOD[:-1] + b",}",
    "comment": GOOD[:-1] + b"/* */}",
    "two documents": GOOD + GOOD,
    "nul byte": GOOD + b"\x00",
    "huge exponent": GOOD[:-1] + b', "temperature": 1e999}',
    "huge integer": GOOD[:-1] + b', "seed": ' + b"9" * 5000 + b"}",
    "seed over 64 bits": GOOD[:-1] + b', "seed": 18446744073709551616}',
    "n over 32 bits": GOOD[:-1] + b', "n": 4294967297}',
    "negative zero as n": GOOD[:-1] + b', "n": -0}',
    "deep arrays": b"[" * 100_000,
    "deep closed arrays": b"[" * 50_000 + b"]" * 50_000,
    "deep objects": b'{"a":' * 30_000 + b"1" + b"}" * 30_000,
    "deep inside": GOOD[:-1] + b', "tools": ' + b"[" * 65 + b"]" * 65 + b"}",
    "array": b"[1]",
    "string": b'"model"',
    "stop of null": GOOD[:-1] + b', "stop": [null]}',
    "stop of numbers": GOOD[:-1] + b', "stop": [1]}',
    "escape cut short": b'{"model": "\\u12',
    "control character": GOOD.replace(b"Hello", b"He\x01llo"),
    "many values": b'{"model":"scripted","messages":[' + b"{}," * 2_500_000 + b"{}]}",
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_bad_body_is_a_422(server: Running, name: str) -> None:
    status, body = answer(asked(server, posted(BAD_BODIES[name], headers=CLOSE)))
    assert status == 422
    parsed = json.loads(body)
    assert set(parsed) == {"error", "error_type"}
    assert len(parsed["error"]) < 1000


def test_the_last_of_two_equal_keys_counts(server: Running) -> None:
    body = b'{"model": "nope", "max_tokens": "x",' + GOOD[1:-1] + b', "model": "scripted", "max_tokens": 2}'
    assert answer(asked(server, posted(body, headers=CLOSE)))[0] == 200


def test_a_bom_and_odd_content_types_do_not_matter(server: Running) -> None:
    odd = CLOSE + "Content-Type: text/plain; charset=ebcdic\r\nAccept: image/png\r\nContent-Encoding: identity\r\n"
    assert answer(asked(server, posted(b"\xef\xbb\xbf" + GOOD, headers=odd)))[0] == 200


def test_a_body_longer_than_declared_is_another_request(server: Running) -> None:
    data = asked(server, head(len(GOOD)) + GOOD + b"garbage that is no request\r\n\r\n")
    assert answer(data)[0] in (200, 400)


def test_a_body_shorter_than_declared_is_given_up(server: Running) -> None:
    assert asked(server, head(len(GOOD) + 10) + GOOD, ends=True) == b""


BAD_HTTP = {
    "not http": b"hello there\r\n\r\n",
    "tls greeting": bytes.fromhex("16030100c8010000c40303") + b"\x00" * 200,
    "negative length": head(None, headers="Content-Length: -5\r\n"),
    "two lengths": head(None, headers="Content-Length: 5\r\nContent-Length: 6\r\n") + GOOD,
    "length and chunked": head(5, headers=CHUNKED) + chunked(GOOD, 10),
    "length with letters": head(None, headers="Content-Length: 5x\r\n"),
    "length over 64 bits": head(None, headers="Content-Length: 99999999999999999999999\r\n"),
    "bad chunk size": head(None, headers=CHUNKED) + b"zz\r\nhello\r\n0\r\n\r\n",
    "huge chunk size": head(None, headers=CHUNKED) + b"fffffffffffffffffffff\r\nhello",
    "header without colon": head(0, headers="NoColonHere\r\n"),
    "header with nul": head(0, headers="A: b\x00c\r\n"),
    "folded header": head(0, headers="A: b\r\n c\r\n"),
    "space before colon": head(0, headers="A : b\r\n"),
    "http/3": b"GET /health HTTP/3.0\r\nHost: x\r\n\r\n",
    "unknown method": b"BREW /pot HTTP/1.1\r\nHost: x\r\n\r\n",
    "bad address": b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "address not ascii": b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("name", BAD_HTTP)
def test_bad_http_is_refused_and_closed(server: Running, name: str) -> None:
    data = asked(server, BAD_HTTP[name], ends=True)
    if data:
        assert answer(data)[0] in (400, 404, 405, 413, 422)


def test_http_1_0_gets_a_whole_answer_without_chunks(server: Running) -> None:
    data = asked(server, posted(GOOD).replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert b"transfer-encoding" not in data.lower()
    assert answer(data)[0] == 200


def test_expect_continue_is_answered(server: Running) -> None:
    with server.connect() as connection:
        connection.sendall(head(len(GOOD), headers=CLOSE + "Expect: 100-continue\r\n"))
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(GOOD)
        assert answer(received(connection))[0] == 200


def test_chunked_uploads_in_any_pieces(server: Running) -> None:
    for size in (1, 7, len(GOOD)):
        data = head(None, headers=CLOSE + CHUNKED) + chunked(GOOD, size)
        assert answer(asked(server, data))[0] == 200


def test_a_request_byte_by_byte(server: Running) -> None:
    with server.connect() as connection:
        for byte in posted(GOOD, headers=CLOSE):
            connection.sendall(bytes([byte]))
        assert answer(received(connection))[0] == 200


def test_pipelined_requests_are_answered_in_order(server: Running) -> None:
    requests = [posted(json.dumps(chat(max_tokens=n, stream=bool(n % 2))).encode()) for n in range(1, 9)]
    requests.append(posted(GOOD, headers=CLOSE))
    data = asked(server, b"".join(requests))
    assert data.count(b"HTTP/1.1 200 OK") == 9
    assert data.count(b"data: [DONE]") == 4


def test_an_upgrade_is_ignored(server: Running) -> None:
    upgrade = "Connection: Upgrade, close\r\nUpgrade: h2c\r\n"
    data = asked(server, head(None, headers=upgrade, path="/health", method="GET"), ends=True)
    assert data == b"" or answer(data)[0] in (200, 400)


@pytest.mark.parametrize("path", ["/v1/models/" + "a" * 5000, "/v1/models/..%2f..%2fetc", "/v1/models/%00", "//health"])
def test_odd_paths_are_not_found(server: Running, path: str) -> None:
    status, body = answer(asked(server, head(None, headers=CLOSE, path=path, method="GET")))
    assert status == 404
    assert len(body) < 600
