"""The whole program as a process: start, signals, exit codes, messages."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from mindserve.engine.scripted import Answer, Script
from tests.api.running import PATH, chat, eventually

SHIPPED = Path(__file__).parents[1] / "settings" / "data" / "config.json"
MAIN = "from mindserve.cli import main; main()"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", MAIN, *arguments]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MIES", "MINDIE"))}
    return subprocess.run(
        command(*arguments), check=False, capture_output=True, text=True, timeout=60, env=inherited | environment
    )


@contextlib.contextmanager
def served(tmp_path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process and its address, once it is ready."""
    script = tmp_path / "script.json"
    odd = (
        Answer(match="hang", hang_after=2),
        Answer(match="slow", first_delay_s=1.0),
        Answer(match="fail", fail_after=1),
    )
    answers = (*odd, Answer())
    script.write_bytes(msgspec.json.encode(Script(answers=answers)))
    options = ("serve", "--engine", "scripted", "--port", "0", "--script", str(script), *arguments)
    process = subprocess.Popen(command(*options), stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        url = None
        for line in process.stderr:
            if found := re.search(r"ready (http://\S+)", line):
                url = found.group(1)
                break
        assert url, "the server did not start"
        yield process, url
    finally:
        process.kill()
        process.wait()


def test_a_signal_drains(tmp_path: Path) -> None:
    with served(tmp_path) as (process, url), httpx.Client(trust_env=False, timeout=30) as client:
        with client.stream("POST", url + PATH, json=chat("slow", stream=True)) as response:
            process.send_signal(signal.SIGTERM)
            eventually(lambda: client.get(url + "/v2/health/ready").status_code == 503)
            assert client.post(url + PATH, json=chat()).status_code == 503
            assert response.read().endswith(b"data: [DONE]\n\n")
        assert process.wait(20) == 0


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    body = chat("hang", stream=True)
    with (
        served(tmp_path) as (process, url),
        httpx.Client(trust_env=False, timeout=30) as client,
        client.stream("POST", url + PATH, json=body),
    ):
        process.send_signal(signal.SIGINT)
        eventually(lambda: client.get(url + "/health").status_code == 503)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 1


def test_requests_that_outlast_the_drain_end_with_what_they_have(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    model = {"modelName": "scripted", "modelWeightPath": "x", "modelInstanceType": "StandardMock"}
    raw = {
        "ServerConfig": {"httpsEnabled": False, "metricsPort": 1025},
        "BackendConfig": {"ModelDeployConfig": {"ModelConfig": [model]}, "ScheduleConfig": {}},
        "MindserveConfig": {"drainTimeout": 0.3},
    }
    file.write_text(json.dumps(raw))
    with served(tmp_path, "--config-file", str(file)) as (process, url), httpx.Client(trust_env=False) as client:
        with client.stream("POST", url + PATH, json=chat("hang", stream=True)) as response:
            process.send_signal(signal.SIGTERM)
            body = response.read()
        assert body.endswith(b"data: [DONE]\n\n")
        assert process.wait(20) == 0


def test_operators_errors_are_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text(SHIPPED.read_text().replace('"port": 1025', '"port": 1'))
    for arguments, text in (
        (("serve",), "--config-file"),
        (("serve", "--config-file", str(tmp_path / "none.json")), "cannot be read"),
        (("serve", "--config-file", str(broken)), "ServerConfig.port must be an integer in [1024, 65535], got 1."),
        (("serve", str(tmp_path / "no-model")), "no-model"),
        (("config", "check", str(broken)), "ServerConfig.port"),
        (("chat", "--url", "http://127.0.0.1:9"), "No server at 127.0.0.1:9"),
    ):
        result = run(*arguments)
        assert result.returncode == 1, arguments
        assert text in result.stderr
        assert "Traceback" not in result.stderr


def test_config_show_prints_json_without_secrets() -> None:
    shown = run("config", "show", str(SHIPPED))
    assert shown.returncode == 0
    assert json.loads(shown.stdout)["model"]["name"] == "llama_65b"


def test_config_check_reads_tls_files_too(tmp_path: Path) -> None:
    plain = tmp_path / "plain.json"
    plain.write_text(SHIPPED.read_text().replace('"httpsEnabled": true', '"httpsEnabled": false'))
    checked = run("config", "check", MIES_CONFIG_JSON_PATH=str(plain))
    assert checked.returncode == 0
    assert "npuDeviceIds" in checked.stderr
    checked = run("config", "check", str(SHIPPED))
    assert checked.returncode == 1
    assert "security/ca/ca.pem cannot be read" in checked.stderr.replace("\n", "")


def test_the_chat_client_talks(tmp_path: Path) -> None:
    with served(tmp_path) as (_, url):
        result = subprocess.run(
            command("chat", "--url", url), check=False, input="Hi\n\n", capture_output=True, text=True, timeout=60
        )
    assert result.returncode == 0, result.stderr
    assert "Hello! How can I help you today?" in result.stdout


def test_an_unknown_option_is_a_usage_error() -> None:
    assert run("serve", "--nonsense").returncode == 2
    assert run("serve", "--log-level", "loud").returncode == 2


PRIVATE_TOOL = {"type": "function", "function": {"name": "private", "description": "private"}}
PRIVATE_REQUESTS: list[dict[str, Any]] = [
    chat("private", stream=True),
    chat("private", tools=[PRIVATE_TOOL]),
    chat("private", tools=[PRIVATE_TOOL], tool_choice={"type": "function", "function": {"name": "private"}}),
    chat("private", stop="private", seed=2**64 - 1),
    chat("private", response_format={"type": "json_object"}, max_tokens=5),
    chat("private" * 10000),
    chat("private fail"),
    chat("private", chat_template="private {{"),
    chat("private", chat_template_kwargs={"messages": "private"}),
    {**chat("private"), "model": "private"},
    {**chat(), "messages": [{"role": "private", "content": "private"}]},
    {**chat(), "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "private.png"}]}]},
]
"""Answered or refused in every room that a request passes."""


@pytest.mark.parametrize("log_json", [True, False])
def test_log_lines_name_requests_and_no_text(tmp_path: Path, log_json: bool) -> None:
    with served(tmp_path, *(["--log-json"] if log_json else [])) as (process, url):
        for body in PRIVATE_REQUESTS:
            assert httpx.post(url + PATH, json=body, trust_env=False).status_code in (200, 422, 424, 500)
        httpx.post(url + PATH, json=chat("my private question"), headers={"req-id": "logged"}, trust_env=False)
        httpx.post(url + "/v1/tokenizer", json={"inputs": "private"}, trust_env=False)
        httpx.get(url + "/private?private=1", headers={"req-id": "private"}, trust_env=False)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        lines = process.stderr.read().splitlines()
    line = next(line for line in lines if "request_id=logged" in line)
    assert "outcome=finished" in line
    assert "private" not in "".join(lines).lower()
    assert "How can I help" not in "".join(lines)
    assert sum("request_id=" in line for line in lines) > 3
    if log_json:
        assert json.loads(line)["level"] == "info"
