"""What the server refuses or ends: bodies, crowds, time."""

import json
import time
from dataclasses import replace

import httpx
import pytest

from tests.api.raw import answer, chunked, head, next_answer, received
from tests.api.running import (
    PATH,
    Running,
    chat,
    events,
    eventually,
    gather,
    running,
    settings_for,
    with_server,
)

LIMIT = 100_000


@pytest.fixture(scope="module")
def narrow():
    """A server that takes bodies of at most LIMIT bytes."""
    with running(settings_for(max_body_bytes=LIMIT)) as server:
        yield server


def padded(size: int) -> bytes:
    """A good request of exactly `size` bytes."""
    body = json.dumps({**chat(max_tokens=1), "padding": ""}).encode()
    return body[:-2] + b"x" * (size - len(body)) + b'"}'


def test_a_body_of_exactly_the_limit_is_read(narrow: Running) -> None:
    assert narrow.post(padded(LIMIT)).status_code == 200
    response = narrow.post(padded(LIMIT + 1))
    assert response.status_code == 413
    assert response.json()["error_type"] == "Payload Too Large"
    assert response.json()["error"].startswith("Request body too large. Maximum allowed size is ")


def test_a_declared_length_is_refused_before_the_body_comes(narrow: Running) -> None:
    with narrow.connect() as connection:
        connection.sendall(head(10**9) + b"{")
        assert next_answer(connection)[0] == 413


def test_chunked_bodies_are_counted_too(narrow: Running) -> None:
    coding = "Transfer-Encoding: chunked\r\nConnection: close\r\n"
    for size, status in ((LIMIT, 200), (LIMIT + 1, 413)):
        with narrow.connect() as connection:
            connection.sendall(head(None, headers=coding) + chunked(padded(size), 8192))
            assert answer(received(connection))[0] == status


def test_an_endless_chunked_body_is_refused_while_it_comes(narrow: Running) -> None:
    with narrow.connect() as connection:
        connection.sendall(head(None, headers="Transfer-Encoding: chunked\r\n"))
        for _ in range(LIMIT // 1000 + 2):
            connection.sendall(b"3e8\r\n" + b" " * 1000 + b"\r\n")
        assert next_answer(connection)[0] == 413


def test_small_endpoints_have_the_same_limit(narrow: Running) -> None:
    for path in ("/v1/tokenizer", "/v2/models/scripted/stopInfer", "/v1/load_lora_adapter"):
        assert narrow.send(path, {"inputs": "x" * LIMIT}).status_code == 413


def test_the_message_names_the_configured_size() -> None:
    with running(settings_for(max_body_bytes=1024 * 1024)) as server:
        text = server.post(b" " * (1024 * 1024 + 1)).json()["error"]
    assert text == "Request body too large. Maximum allowed size is 1MB."


def test_a_large_body_is_parsed_beside_the_event_loop(server: Running) -> None:
    body = chat("x" * 200_000, max_tokens=1)
    assert server.post(body).status_code == 424


def test_a_crowd_gets_four_places_eight_seats_and_429() -> None:
    with running(settings_for(max_link_num=4)) as server:
        responses = gather(40, lambda i: server.post(chat("slow", stream=bool(i % 2))))
        statuses = sorted(response.status_code for response in responses)
        assert statuses == [200] * 12 + [429] * 28
        for response in responses:
            if response.status_code == 429:
                assert response.json() == {"error": "Model is overloaded", "error_type": "Overloaded"}
                assert int(response.headers["retry-after"]) >= 1
        assert server.is_idle()
        assert server.post(chat()).status_code == 200
        assert server.metric("request_refused_total") == 28


def test_a_full_house_is_alive_but_not_ready() -> None:
    with running(settings_for(max_link_num=1)) as server, server.hanging():
        assert server.get("/health").status_code == 200
        assert server.get("/v2/health/live").status_code == 200
        assert server.get("/v2/health/ready").status_code == 503
        assert server.get("/health/timed-5").status_code == 200


@pytest.mark.parametrize(("key", "limit"), [("tokenTimeout", "token_timeout_s"), ("e2eTimeout", "e2e_timeout_s")])
def test_timeouts_are_a_500_or_the_last_event(key: str, limit: str) -> None:
    expected = {"error": f"Engine callback timeout: server {key}", "error_type": "Incomplete Generation"}
    with running(settings_for(**{limit: 0.2})) as server:
        response = server.post(chat("hang"))
        assert (response.status_code, response.json()) == (500, expected)
        chunks = events(server.post(chat("hang", stream=True)).content)
        assert chunks[-1] == expected
        assert len(chunks) == 3
        eventually(server.is_idle)
        assert server.metric("request_failed_total") == 2
        assert server.post(chat()).status_code == 200


def test_waiting_in_line_counts_toward_the_end_to_end_timeout() -> None:
    with running(settings_for(max_link_num=1, e2e_timeout_s=0.5, token_timeout_s=60)) as server:
        first, second = gather(2, lambda i: (time.sleep(i * 0.1), server.post(chat("hang")))[1])
        assert first.status_code == second.status_code == 500
        eventually(server.is_idle)


def test_a_client_that_gives_up_in_line_leaves_no_trace() -> None:
    with running(settings_for(max_link_num=1)) as server:
        admission = server.state.service.admission
        with server.hanging():
            with pytest.raises(httpx.ReadTimeout):
                server.browser.post(server.url + PATH, json=chat(), timeout=0.3)
            eventually(lambda: server.in_loop(lambda: admission.waiting) == 0)
        eventually(server.is_idle)
        assert server.post(chat()).status_code == 200


def test_depth_and_n_have_their_configured_limits() -> None:
    settings = settings_for(max_json_depth=10, max_n=2)
    deep: object = "x"
    for _ in range(12):
        deep = [deep]
    with running(with_server(settings, limits=replace(settings.server.limits))) as server:
        assert server.post({**chat(), "metadata": deep}).status_code == 422
        assert server.post(chat(n=3)).status_code == 422
        assert server.post(chat(n=2)).status_code == 200
