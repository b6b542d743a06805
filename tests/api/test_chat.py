"""Chat over HTTP: both ways of `stream`, ids, modes, and every class of error in its shape."""

import re
import time
from typing import Any

import pytest

from mindserve.settings.values import ApiMode
from tests.api.running import Running, chat, content, events, eventually, running, settings_for, with_server

GREETING = "Hello! How can I help you today?"


def test_a_full_answer(server: Running) -> None:
    response = server.post(chat())
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert list(answer) == ["id", "object", "created", "model", "choices", "usage", "prefill_time", "decode_time_arr"]
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": GREETING, "tool_calls": []}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert abs(answer["created"] - time.time()) < 60


def test_a_stream(server: Running) -> None:
    response = server.post(chat(stream=True))
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events(response.content)
    assert chunks.pop() == "[DONE]"
    assert content(chunks) == GREETING
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert chunks[-1]["usage"]["completion_tokens"] == len(chunks)


def test_a_stream_comes_bit_by_bit() -> None:
    with running(step_interval_s=0.05) as server, server.client() as client:
        with client.stream("POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=6)) as response:
            moments = [
                time.monotonic() for part in response.iter_raw() if part.startswith(b"data: ") or b"data" in part
            ]
        assert len(moments) >= 6
        assert moments[-1] - moments[0] > 0.1


def test_several_sequences_in_both_ways(server: Running) -> None:
    full = server.post(chat(n=3)).json()
    assert [choice["index"] for choice in full["choices"]] == [0, 1, 2]
    chunks = events(server.post(chat(n=3, stream=True)).content)[:-1]
    ended = [chunk["choices"][0]["index"] for chunk in chunks if chunk["choices"][0]["finish_reason"]]
    assert ended == [0, 1, 2]


def test_ids_count_up_and_req_id_replaces_them(server: Running) -> None:
    first, second = (server.post(chat()).json()["id"] for _ in range(2))
    numbers = [int(re.fullmatch(r"endpoint_common_(\d+)", name).group(1)) for name in (first, second)]  # type: ignore[union-attr]
    assert numbers[1] == numbers[0] + 1
    assert server.post(chat(), headers={"req-id": "my-ID_7"}).json()["id"] == "my-ID_7"
    for unfit in ("a b", "x" * 257, "é".encode(), ""):
        assert server.post(chat(), headers={"req-id": unfit}).json()["id"].startswith("endpoint_common_")


def test_every_answer_has_a_mark_of_its_own(server: Running) -> None:
    answers = [server.post(body) for body in (chat(), chat(stream=True), chat(temperature=-1), chat("fail"), chat())]
    marks = {answer.headers["RequestUUID"] for answer in answers}
    assert len(marks) == 5
    assert all(re.fullmatch("[0-9a-f]{32}", mark) for mark in marks)


def test_a_running_req_id_is_refused(server: Running) -> None:
    with server.hanging(headers={"req-id": "one"}):
        response = server.post(chat(), headers={"req-id": "one"})
        assert response.status_code == 500
        assert response.json() == {
            "error": "Failed to enqueue inferRequest. Runtime request has been used before.",
            "error_type": "Incomplete Generation",
        }
    eventually(server.is_idle)
    assert server.post(chat(), headers={"req-id": "one"}).status_code == 200


def test_a_client_cannot_block_the_servers_own_ids(server: Running) -> None:
    last = int(server.post(chat()).json()["id"].rpartition("_")[2])
    taken = f"endpoint_common_{last + 1}"
    with server.hanging(headers={"req-id": taken}):
        assert server.post(chat()).json()["id"] == f"endpoint_common_{last + 2}"


def test_errors_before_the_stream_are_plain_even_for_streams(server: Running) -> None:
    for way in (True, False):
        response = server.post(chat(temperature=-1, stream=way))
        assert response.status_code == 422
        assert response.headers["content-type"] == "application/json"
        assert list(response.json()) == ["error", "error_type"]
        assert response.json()["error_type"] == "Input Validation Error"


def test_an_engine_failure_is_a_500_or_the_last_event(server: Running) -> None:
    response = server.post(chat("fail"))
    assert response.status_code == 500
    assert response.json() == {"error": "The script ends here.", "error_type": "Incomplete Generation"}
    response = server.post(chat("fail", stream=True))
    assert response.status_code == 200
    chunks = events(response.content)
    assert chunks[-1] == {"error": "The script ends here.", "error_type": "Incomplete Generation"}
    assert len(chunks) == 3
    assert "[DONE]" not in chunks


def test_a_prompt_over_the_limit_is_a_424() -> None:
    settings = settings_for()
    with running(settings) as server:
        response = server.post(chat("x" * 40000, stream=True))
        assert response.status_code == 424
        assert response.json()["error_type"] == "Generation Error"


def test_an_unexpected_error_shows_nothing_of_the_inside(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("secret detail")

    with monkeypatch.context() as patch:
        patch.setattr("mindserve.server.chat.parse_request", fail)
        response = server.post(chat())
    assert response.status_code == 500
    assert response.json() == {"error": "Server internal error", "error_type": "Incomplete Generation"}
    assert server.post(chat()).status_code == 200


def test_an_unexpected_error_inside_a_stream_is_its_last_event(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> bytes:
        raise RuntimeError("secret detail")

    with monkeypatch.context() as patch:
        patch.setattr("mindserve.render.ChunkRenderer.render", fail)
        response = server.post(chat(stream=True))
    assert response.status_code == 200
    assert events(response.content) == [{"error": "Server internal error", "error_type": "Incomplete Generation"}]


def test_an_unexpected_error_of_another_route_shows_nothing_either(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> str:
        raise RuntimeError("secret detail")

    with monkeypatch.context() as patch:
        patch.setattr("mindserve.server.service_plane.spelled", fail)
        response = server.send("/v1/tokenizer", {"inputs": "a"})
    assert response.status_code == 500
    assert response.json() == {"error": "Server internal error", "error_type": "Incomplete Generation"}


def test_native_mode_speaks_openai() -> None:
    with running(with_server(settings_for(), api_mode=ApiMode.NATIVE)) as server:
        answer = server.post(chat()).json()
        assert answer["id"].startswith("chatcmpl-")
        assert "prefill_time" not in answer
        assert "batch_size" not in answer["usage"]
        chunks = events(server.post(chat(stream=True, stream_options={"include_usage": True})).content)
        assert chunks[-1] == "[DONE]"
        assert chunks[-2]["choices"] == []
        assert chunks[-2]["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]
        for response, param in (
            (server.post(chat(temperature=3)), "temperature"),
            (server.post({**chat(), "model": "other"}), "model"),
        ):
            assert response.status_code == 422
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert (error["type"], error["param"]) == ("invalid_request_error", param)
        failed = events(server.post(chat("fail", stream=True)).content)[-1]
        assert failed["error"]["type"] == "server_error"


def test_full_text_mode() -> None:
    with running(with_server(settings_for(), full_text=True)) as server:
        chunks = events(server.post(chat(stream=True)).content)[:-1]
        texts = [chunk["choices"][0]["delta"]["content"] for chunk in chunks]
        assert texts[0] == GREETING[0]
        assert texts[-1] == chunks[-1]["full_text"] == GREETING


def test_stop_infer_ends_a_stream_with_what_it_has(server: Running) -> None:
    with server.client() as client:
        headers = {"req-id": "to-stop"}
        with client.stream("POST", "/v1/chat/completions", json=chat("hang", stream=True), headers=headers) as response:
            parts = response.iter_raw()
            seen = next(parts)
            stop = server.send("/v2/models/scripted/stopInfer", {"id": "to-stop"})
            assert stop.status_code == 200
            assert stop.json() == {"id": "to-stop"}
            chunks = events(seen + b"".join(parts))
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert content(chunks) == GREETING[:2]


@pytest.mark.parametrize(
    ("model", "body", "status", "text"),
    [
        ("scripted", {"id": "nobody"}, 404, "RequestId is nobody not found."),
        ("other", {"id": "nobody"}, 404, "Model other not found."),
        ("scripted", {"id": "a b"}, 422, "id"),
        ("scripted", {"id": 7}, 422, "id"),
        ("scripted", {}, 422, "id"),
        ("scripted", [], 422, "object"),
    ],
)
def test_stop_infer_refuses(server: Running, model: str, body: Any, status: int, text: str) -> None:
    response = server.send(f"/v2/models/{model}/stopInfer", body)
    assert response.status_code == status
    assert text in response.json()["error"]


def test_models(server: Running) -> None:
    answer = server.get("/v1/models").json()
    assert answer["object"] == "list"
    assert [(m["id"], m["object"], m["parent"]) for m in answer["data"]] == [("scripted", "model", None)]
    assert server.get("/v1/models/scripted").json() == answer["data"][0]
    missing = server.get("/v1/models/other")
    assert missing.status_code == 404
    assert missing.json() == {"error": "Model other not found.", "error_type": "NotFoundError"}


def test_tokenizer(server: Running) -> None:
    answer = server.send("/v1/tokenizer", {"inputs": "aé🙂<|im_end|>"}).json()
    assert answer == {"token_number": 8, "tokens": ["a", "é", "🙂", "<|im_end|>"]}
    assert server.send("/v1/tokenizer", {"inputs": "ab", "do_decode": False}).json() == {
        "token_number": 2,
        "tokens": [],
    }
    for body in ({}, {"inputs": ""}, {"inputs": 1}, {"inputs": "a", "do_decode": "no"}, []):
        assert server.send("/v1/tokenizer", body).status_code == 422


def test_unknown_paths_and_methods(server: Running) -> None:
    for method, path, status, kind in (
        ("GET", "/nowhere", 404, "NotFoundError"),
        ("POST", "/v1/chat", 404, "NotFoundError"),
        ("GET", "/v1/chat/completions", 405, "Method Not Allowed"),
        ("DELETE", "/v1/models", 405, "Method Not Allowed"),
        ("PUT", "/v1/chat/completions", 405, "Method Not Allowed"),
    ):
        with server.client() as client:
            response = client.request(method, path)
        assert response.status_code == status
        assert response.json()["error_type"] == kind
        assert response.headers["content-type"] == "application/json"


def test_docs_show_the_modes_schema(server: Running) -> None:
    document = server.get("/openapi.json").json()
    assert "/v1/chat/completions" in document["paths"]
    assert "swagger" in server.get("/docs").text.lower()


def test_the_api_key() -> None:
    with running(with_server(settings_for(), api_key="s3cret")) as server:
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "s3cret"},
            {"authorization": "Bearer"},
        ):
            response = server.post(chat(), headers=headers)
            assert response.status_code == 401
            assert response.json()["error_type"] == "Unauthorized"
        assert server.post(chat(), headers={"authorization": "Bearer s3cret"}).status_code == 200
        assert server.get("/health").status_code == 200
        assert server.get("/metrics").status_code == 200
        assert server.get("/v1/models").status_code == 401
        assert server.get("/stopService").status_code == 401


def test_a_thousand_requests_on_one_connection(server: Running) -> None:
    sockets: set[int] = set()
    with server.client() as client:
        for number in range(1000):
            response = client.post("/v1/chat/completions", json=chat(max_tokens=2, stream=bool(number % 2)))
            assert response.status_code == 200
            sockets.add(response.extensions["network_stream"].get_extra_info("client_addr")[1])
    assert len(sockets) == 1


def test_a_hung_request_does_not_hold_up_others(server: Running) -> None:
    with server.hanging():
        assert server.post(chat()).json()["choices"][0]["message"]["content"] == GREETING
