"""Management and metrics: health, probes, adapters, stopping, and planes on sockets of their own."""

import threading
import time
from pathlib import Path

import pytest

from mindserve.engine.scripted import Answer
from mindserve.errors import ConfigError
from mindserve.server.app import PlaneKind
from mindserve.server.lifecycle import bind
from mindserve.settings.values import Plane
from tests.api.running import Running, chat, eventually, on_planes, running, settings_for, with_server

SERVICE = Plane(host="127.0.0.1", port=0)
MANAGEMENT = Plane(host="127.0.0.2", port=0)
METRICS = Plane(host="127.0.0.3", port=0)


def test_planes_that_share_an_address_share_their_routes(server: Running) -> None:
    assert len(set(server.urls.values())) == 1
    for path in ("/health", "/metrics", "/v1/models", "/v1/config"):
        assert server.get(path).status_code == 200


def test_planes_of_their_own_have_only_their_routes() -> None:
    own = {
        PlaneKind.SERVICE: "/v1/models",
        PlaneKind.MANAGEMENT: "/health",
        PlaneKind.METRICS: "/metrics",
    }
    with running(on_planes(settings_for(), SERVICE, MANAGEMENT, METRICS)) as server:
        assert len(set(server.urls.values())) == 3
        for plane in PlaneKind:
            for owner, path in own.items():
                assert server.get(path, plane).status_code == (200 if plane is owner else 404)


def test_two_planes_may_share() -> None:
    with running(on_planes(settings_for(), SERVICE, MANAGEMENT, MANAGEMENT)) as server:
        assert server.get("/metrics", PlaneKind.MANAGEMENT).status_code == 200
        assert server.get("/metrics").status_code == 404


def test_a_taken_address_is_an_operators_error(server: Running) -> None:
    taken = Plane(host=server.address[0], port=server.address[1])
    with pytest.raises(ConfigError, match=f"port {taken.port}"):
        bind(with_server(settings_for(), service=taken, management=taken, metrics=taken).server)


def test_ipv6() -> None:
    plane = Plane(host="::1", port=0)
    with running(on_planes(settings_for(), plane, plane, plane)) as server:
        assert server.url.startswith("http://[::1]:")
        assert server.post(chat()).status_code == 200


def test_health(server: Running) -> None:
    for path in ("/health", "/v2/health/live", "/v2/health/ready", "/v2/models/scripted/ready"):
        response = server.get(path)
        assert (response.status_code, response.content) == (200, b"")
    for path in ("/health/timed", "/health/timed-1", "/health/timed-600"):
        response = server.get(path)
        assert (response.status_code, response.json()) == (200, {"status": "healthy"})
    for wait in ("0", "601", "-1", "x", "1.5", "00000000001", "٣"):
        assert server.get(f"/health/timed-{wait}").status_code == 404
    assert server.get("/v2/models/other/ready").status_code == 404


@pytest.mark.parametrize("answer", [Answer(hang_after=0), Answer(fail_after=0)])
def test_a_probe_without_a_token_is_a_500(answer: Answer) -> None:
    with running(answers=(answer,)) as server:
        started_s = time.monotonic()
        response = server.get("/health/timed-1")
        assert response.status_code == 500
        assert response.json()["error_type"] == "Incomplete Generation"
        assert time.monotonic() - started_s < 10
        eventually(server.is_idle)


def test_a_broken_engine_is_unhealthy() -> None:
    with running() as server:
        server.in_loop(lambda: setattr(server.engine, "_is_closed", True))
        assert server.get("/health").status_code == 500
        assert server.get("/v2/health/ready").status_code == 500
        assert server.post(chat()).status_code == 503


def test_facts(server: Running) -> None:
    config = server.get("/v1/config").json()
    assert config["modelName"] == "scripted"
    assert config["maxSeqLen"] == 32768
    assert (config["cacheBlockSize"], config["worldSize"]) == (32, 1)
    slots = server.get("/v2/models/scripted/getSlotCount").json()
    assert set(slots) == {"total_slots", "free_slots", "available_tokens_length"}
    assert slots["free_slots"] == slots["total_slots"] == 200


def test_adapters_come_and_go(server: Running, tmp_path: Path) -> None:
    body = {"lora_name": "a.b", "lora_path": str(tmp_path)}
    assert server.post({**chat(), "model": "a.b"}).status_code == 422
    assert server.send("/v1/load_lora_adapter", body).status_code == 200
    assert [m["id"] for m in server.get("/v1/models").json()["data"]] == ["scripted", "a.b"]
    assert server.get("/v1/models/a.b").json()["parent"] == "scripted"
    answer = server.post({**chat(), "model": "a.b"}).json()
    assert answer["model"] == "a.b"
    assert server.engine.requests[-1].adapter == "a.b"
    assert server.send("/v2/models/a.b/stopInfer", {"id": "none"}).json()["error"] == "RequestId is none not found."
    assert server.send("/v1/load_lora_adapter", body).status_code == 422
    assert server.send("/v1/unload_lora_adapter", body).status_code == 200
    assert server.send("/v1/unload_lora_adapter", body).status_code == 422
    assert server.post({**chat(), "model": "a.b"}).status_code == 422


def test_adapters_are_checked(server: Running, tmp_path: Path) -> None:
    for body in (
        {"lora_name": "a", "lora_path": str(tmp_path / "none")},
        {"lora_name": "-", "lora_path": str(tmp_path)},
        {"lora_name": "scripted", "lora_path": str(tmp_path)},
        {"lora_name": "a"},
        {"lora_path": str(tmp_path)},
        [],
    ):
        assert server.send("/v1/load_lora_adapter", body).status_code == 422


def test_metrics_count_what_happened() -> None:
    with running() as server:
        server.post(chat())
        server.post(chat(stream=True, max_tokens=5))
        server.post(chat("fail"))
        server.post(chat(temperature=-1))
        text = server.get("/metrics").text
        assert server.metric("request_received_total") == 3
        assert server.metric("request_success_total") == 2
        assert server.metric("request_failed_total") == 1
        assert server.metric("request_errors_total", status="422") == 1
        assert server.metric("request_errors_total", status="500") == 1
        assert server.metric("generation_tokens_total") == 33 + 5 + 2
        assert server.metric("time_to_first_token_seconds_count") == 3
        assert server.metric("time_per_output_token_seconds_count") == 32 + 4 + 1
        assert server.metric("num_requests_running") == 0
        for name in (
            "num_requests_waiting",
            "npu_cache_usage_perc",
            "num_preemptions_total",
            "avg_prompt_throughput_toks_per_s",
            "avg_generation_throughput_toks_per_s",
        ):
            assert f'{name}{{model_name="scripted"}}' in text
        assert server.metric("failed_request_perc") == 1 / 3


def test_stop_service_waits_for_running_requests() -> None:
    with running() as server:
        results: list[int] = []
        slow = threading.Thread(target=lambda: results.append(server.post(chat("slow")).status_code))
        slow.start()
        eventually(lambda: server.state.service.admission.running == 1)
        stopping: list[int] = []
        stop = threading.Thread(target=lambda: stopping.append(server.get("/stopService").status_code))
        stop.start()
        eventually(lambda: server.state.is_stopping)
        refused = server.post(chat())
        assert (refused.status_code, refused.json()) == (
            503,
            {"error": "The service has been stopped", "error_type": "Service Unavailable"},
        )
        assert server.get("/v2/health/ready").status_code == 503
        assert server.get("/health").status_code == 503
        assert server.get("/stopService").status_code == 500
        slow.join(20)
        stop.join(20)
        assert (results, stopping) == ([200], [200])
        server.stopped.result(20)


def test_a_forced_stop_ends_running_requests_with_what_they_have() -> None:
    with running() as server:
        with server.hanging() as response:
            assert server.get("/stopService?mode=Force").status_code == 200
            body = b"".join(response.iter_raw())
        assert body.endswith(b"data: [DONE]\n\n")
        assert b'"finish_reason":"stop"' in body
        server.stopped.result(20)
