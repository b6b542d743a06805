"""Clients that leave, stall or dawdle: their requests end at once and hold nothing."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import pytest

from mindserve.engine.scripted import Answer
from mindserve.server.protocol import ConnectionLimits
from tests.api.raw import answer, head, posted, received
from tests.api.running import Running, chat, eventually, running, settings_for


def opened(server: Running, body: dict[str, object]) -> socket.socket:
    """A connection whose request the service knows."""
    connection = server.connect()
    connection.sendall(posted(json.dumps(body).encode()))
    eventually(lambda: server.state.service.admission.running > 0)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request(server: Running, stream: bool) -> None:
    before = server.metric("request_abandoned_total")
    opened(server, chat("hang", stream=stream)).close()
    eventually(server.is_idle)
    assert server.metric("request_abandoned_total") == before + 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_reset_counts_as_leaving(server: Running, stream: bool) -> None:
    connection = opened(server, chat("hang", stream=stream))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()
    eventually(server.is_idle)


def test_closing_one_direction_counts_as_leaving(server: Running) -> None:
    connection = opened(server, chat("hang", stream=True))
    connection.shutdown(socket.SHUT_WR)
    eventually(server.is_idle)
    received(connection)
    connection.close()


def test_leaving_in_line_frees_the_seat() -> None:
    with running(settings_for(max_link_num=1)) as server:
        admission = server.state.service.admission
        with server.hanging():
            waiting = server.connect()
            waiting.sendall(posted(json.dumps(chat()).encode()))
            eventually(lambda: server.in_loop(lambda: admission.waiting) == 1)
            waiting.close()
            eventually(lambda: server.in_loop(lambda: admission.waiting) == 0)
        eventually(server.is_idle)


def test_leaving_with_another_request_pipelined(server: Running) -> None:
    connection = opened(server, chat("hang", stream=True))
    connection.sendall(posted(json.dumps(chat()).encode()))
    time.sleep(0.1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()
    eventually(server.is_idle)


def test_leaving_in_the_middle_of_a_body(server: Running) -> None:
    with server.connect() as connection:
        connection.sendall(head(1000) + b'{"model"')
    assert server.post(chat()).status_code == 200


@contextlib.contextmanager
def impatient() -> Iterator[Running]:
    limits = ConnectionLimits(
        header_timeout_s=0.3, body_timeout_s=0.3, write_timeout_s=0.5, max_header_bytes=4096, max_connections=8
    )
    endless = Answer(match="endless", text="word " * 2000, tokens_per_step=50)
    with running(answers=(endless, Answer(match="hang", hang_after=2), Answer()), connection_limits=limits) as server:
        yield server


def test_slow_headers_are_not_waited_for() -> None:
    with impatient() as server:
        for start in (b"", b"POST /v1/chat", head(10)[:-2]):
            with server.connect() as connection:
                connection.sendall(start)
                started_s = time.monotonic()
                received(connection)
                assert time.monotonic() - started_s < 5
        assert server.post(chat()).status_code == 200


def test_a_dripping_body_is_not_waited_for() -> None:
    with impatient() as server, server.connect() as connection:
        connection.sendall(head(1000))
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(b" ")
                time.sleep(0.02)
            pytest.fail("the server went on reading")


def test_a_client_that_does_not_read_is_cut_off() -> None:
    with impatient() as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(server.address)
        connection.sendall(posted(json.dumps(chat("endless", stream=True, ignore_eos=True)).encode()))
        eventually(lambda: server.state.service.admission.running == 1)
        eventually(server.is_idle, within_s=20)
        assert server.metric("request_abandoned_total") == 1


def test_a_running_request_is_not_slow() -> None:
    """The patience with clients does not bound the answer."""
    with impatient() as server, server.hanging() as response:
        time.sleep(1.0)
        assert server.state.service.admission.running == 1
        assert not response.is_closed


def test_headers_and_address_are_bounded() -> None:
    with impatient() as server:
        for request in (
            head(0, headers="X: " + "a" * 5000 + "\r\n"),
            head(0, headers="".join(f"X-{i}: aaaaaaaaaaaaaaaaaaaaaaaa\r\n" for i in range(400))),
            head(0, path="/" + "a" * 10000),
            b"POST / HTTP/1.1\r\nX: " + b"a" * 300_000,
        ):
            with server.connect() as connection:
                with contextlib.suppress(ConnectionError):
                    connection.sendall(request)
                data = received(connection)
            if data:  # a reset may overtake the answer when there was more to read
                assert answer(data)[0] in (400, 431)
        assert server.post(chat()).status_code == 200


def test_connections_are_bounded() -> None:
    with impatient() as server:
        crowd = [opened_idle(server) for _ in range(8)]
        with server.connect() as late:
            status, body = answer(received(late))
            assert status == 503
            assert json.loads(body)["error_type"] == "Service Unavailable"
        for connection in crowd:
            connection.close()
        eventually(lambda: server.post(chat()).status_code == 200)


def opened_idle(server: Running) -> socket.socket:
    connection = server.connect()
    connection.sendall(posted(json.dumps(chat("hang", stream=True)).encode()))
    connection.recv(100)
    return connection
