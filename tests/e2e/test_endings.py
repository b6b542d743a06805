"""How streams and answers end when something goes wrong, through HTTP."""

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from mindserve.engine.scripted import Answer
from mindserve.settings.values import Limits

from .fold import Json, StreamError
from .servers import Server, eventually, scripted


def _said(text: str, **fields: Any) -> Json:
    return {"messages": [{"role": "user", "content": text}], **fields}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    answers = (
        Answer(match="break", text="abcdef", fail_after=3, failure="the engine broke"),
        Answer(match="hang", text="abcdef", hang_after=2),
        Answer(match="no room", refuse="The engine is starting."),
        Answer(text="fine"),
    )
    limits = Limits(token_timeout_s=0.3, e2e_timeout_s=30)
    with scripted(*answers, limits=limits, max_input_len=100) as up:
        yield up
        eventually(lambda: up.service.admission.running == 0)
        assert up.service.engine.stats().running == 0


FAILURE = {"error": "the engine broke", "error_type": "Incomplete Generation"}
TIMEOUT = {"error": "Engine callback timeout: server tokenTimeout", "error_type": "Incomplete Generation"}


@pytest.mark.parametrize(("text", "error"), [("break", FAILURE), ("hang", TIMEOUT)])
def test_a_failure_is_an_error_body_or_the_streams_last_event(server: Server, text: str, error: Json) -> None:
    response = server.post(_said(text))
    assert (response.status_code, response.json()) == (500, error)
    response = server.post(_said(text, stream=True))
    assert response.status_code == 200
    events = response.text.removesuffix("\n\n").split("\n\n")
    assert json.loads(events[-1].removeprefix("data: ")) == error
    assert "[DONE]" not in response.text
    contents = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"]["content"] for event in events[:-1]]
    assert contents == list({"break": "abc", "hang": "ab"}[text])


def test_clients_recognise_an_error_event(server: Server) -> None:
    with pytest.raises(StreamError) as caught:
        server.chunks(_said("break", n=2, seed=1))
    assert caught.value.body == FAILURE


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (_said("no room"), 503, "Service Unavailable"),
        (_said("word " * 100), 424, "Generation Error"),
        (_said("hi", temperature=-1), 422, "Input Validation Error"),
        (_said("hi", model="other"), 422, "Input Validation Error"),
    ],
)
def test_refusals_come_before_the_status_line(server: Server, body: Json, status: int, kind: str) -> None:
    full, streamed = server.post(body), server.post({**body, "stream": True})
    assert full.status_code == streamed.status_code == status
    assert full.content == streamed.content
    assert full.headers["content-type"] == streamed.headers["content-type"] == "application/json"
    assert full.json()["error_type"] == kind


def test_a_client_that_leaves_frees_its_place_at_once(server: Server) -> None:
    body = {"model": "tiny", **_said("hang", stream=True)}
    with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        pieces = response.iter_raw()
        assert next(pieces)
        assert server.service.admission.running == 1
    eventually(lambda: server.service.admission.running == 0)
    eventually(lambda: server.service.engine.stats().running == 0)


def test_a_client_that_leaves_before_the_answer_frees_its_place_at_once(server: Server) -> None:
    host, port = server.client.base_url.host, server.client.base_url.port
    assert port is not None
    body = json.dumps({"model": "tiny", **_said("hang")}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, port)) as raw:
        raw.sendall(head.encode() + body)
        eventually(lambda: server.service.admission.running == 1)
    eventually(lambda: server.service.admission.running == 0)


def test_the_id_of_a_running_request_is_refused_and_names_the_answer(server: Server) -> None:
    with scripted(Answer(text="abc", hang_after=1)) as slow:
        body = {"model": "tiny", **_said("hi", stream=True)}
        headers = {"req-id": "mine"}
        with slow.client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            lines = response.iter_lines()  # dropping the iterator would close the connection
            assert json.loads(next(lines).removeprefix("data: "))["id"] == "mine"
            refused = slow.post(_said("hi"), req_id="mine")
            assert refused.status_code == 500
            assert "Runtime request has been used before." in refused.json()["error"]
    assert server.post(_said("hi"), req_id="mine").json()["id"] == "mine"


def test_a_stopped_request_ends_normally_with_what_it_has() -> None:
    with scripted(Answer(text="abc", hang_after=2)) as slow:
        result: list[httpx.Response] = []
        reader = threading.Thread(target=lambda: result.append(slow.post(_said("hi", stream=True), req_id="mine")))
        reader.start()
        eventually(lambda: slow.service.engine.stats().running == 1)
        eventually(lambda: slow.client.post("/v2/models/tiny/stopInfer", json={"id": "mine"}).status_code == 200)
        reader.join()
    events = result[0].text.removesuffix("\n\n").split("\n\n")
    assert events[-1] == "data: [DONE]"
    last = json.loads(events[-2].removeprefix("data: "))
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["usage"]["completion_tokens"] == len(events) - 2 <= 2


def test_too_many_requests_are_told_so() -> None:
    with scripted(Answer(hang_after=0), limits=Limits(max_link_num=1, e2e_timeout_s=20)) as slow:
        threads = [threading.Thread(target=lambda i=i: slow.post(_said("hi"), req_id=f"r{i}")) for i in range(3)]
        for thread in threads:
            thread.start()
        eventually(lambda: slow.service.admission.waiting == 2)
        refused = slow.post(_said("hi"))
        assert refused.status_code == 429
        assert refused.json() == {"error": "Model is overloaded", "error_type": "Overloaded"}
        assert int(refused.headers["retry-after"]) > 0
        for i in range(3):
            eventually(lambda i=i: _stop(slow, f"r{i}"))
        for thread in threads:
            thread.join()
        assert (slow.service.admission.running, slow.service.admission.waiting) == (0, 0)


def _stop(server: Server, request_id: str) -> bool:
    return server.client.post("/v2/models/tiny/stopInfer", json={"id": request_id}).status_code == 200


def test_full_text_streams_repeat_the_whole_answer() -> None:
    with scripted(Answer(text="Hello! How can I help?", tokens_per_step=3), has_full_text=True) as whole:
        body = _said("hi", n=2, seed=1)
        chunks = whole.chunks(body)
        assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks if chunk["choices"][0]["index"] == 1] == [
            "Hello! How can I help?"[:end] for end in [*range(1, 23), 22]
        ]
        streamed, full = whole.streamed(body), whole.full(body)
        assert streamed["choices"] == full["choices"]
