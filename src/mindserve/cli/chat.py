"""`mindserve chat`: a small terminal client for a running server."""

import http.client
import json
import os
from collections.abc import Iterator
from typing import Annotated, Any, cast
from urllib.parse import urlsplit

import typer
from rich.console import Console

from mindserve.cli.operator import plain_errors
from mindserve.errors import MindserveError

TIMEOUT_S = 600


def chat(
    url: Annotated[str, typer.Option(help="Base address of the server.")] = "http://127.0.0.1:1025",
    model: Annotated[str | None, typer.Option(help="Model or adapter; default: the server's model.")] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    temperature: Annotated[float, typer.Option(min=0)] = 0.7,
) -> None:
    """Talk to a running server; an empty line or Ctrl-D ends. MINDSERVE_API_KEY is sent when it is set."""
    client = ChatClient(url, api_key=os.environ.get("MINDSERVE_API_KEY"))
    screen = Console(highlight=False)
    options = {"max_tokens": max_tokens, "temperature": temperature}
    with plain_errors():
        name = model or client.first_model()
        messages = [{"role": "system", "content": system}] if system else []
        screen.print(f"[dim]{name} at {url}[/]")
        for question in _questions(screen):
            messages.append({"role": "user", "content": question})
            body = {"model": name, "messages": messages, **{k: v for k, v in options.items() if v is not None}}
            messages.append({"role": "assistant", "content": _show(screen, client.stream(body))})


def _questions(screen: Console) -> Iterator[str]:
    while True:
        try:
            question = screen.input("[bold cyan]> [/]").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if not question:
            return
        yield question


def _show(screen: Console, deltas: Iterator[dict[str, Any]]) -> str:
    """Print an answer as it comes; thoughts and calls are dim and not part of what is returned."""
    content = ""
    for delta in deltas:
        if thought := delta.get("reasoning_content"):
            screen.print(thought, end="", style="dim", markup=False, soft_wrap=True)
        for call in delta.get("tool_calls") or ():
            screen.print(json.dumps(call, ensure_ascii=False), style="dim", markup=False, soft_wrap=True)
        if text := delta.get("content"):
            content += text
            screen.print(text, end="", markup=False, soft_wrap=True)
    screen.print()
    return content or " "


class ChatClient:
    """The two requests that a conversation needs."""

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        self._is_tls = parts.scheme == "https"
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or (443 if self._is_tls else 80)
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"

    def first_model(self) -> str:
        """Name of the served model. Raises MindserveError."""
        return str(json.loads(self._send("GET", "/v1/models").read())["data"][0]["id"])

    def stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Deltas of the answer's first choice. Raises MindserveError."""
        response = self._send("POST", "/v1/chat/completions", body={**body, "stream": True})
        for line in response:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise MindserveError(_message(event))
            for choice in event["choices"]:
                yield choice["delta"]

    def _send(self, method: str, path: str, *, body: dict[str, Any] | None = None) -> http.client.HTTPResponse:
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, json.dumps(body).encode() if body else None, self._headers)
            response = connection.getresponse()
        except OSError as e:
            raise MindserveError(f"No server at {self._host}:{self._port}: {e.strerror or e}.") from e
        if response.status != 200:
            raise MindserveError(_message(_parsed(response.read(65536))))
        return response


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        value: Any = json.loads(body)
    except ValueError:
        value = None
    is_object = isinstance(value, dict)
    return cast(dict[str, Any], value) if is_object else {"error": body.decode("utf-8", "replace")[:500]}


def _message(answer: dict[str, Any]) -> str:
    """The error text, in either mode's shape."""
    error = answer.get("error")
    return str(cast(dict[str, Any], error).get("message") if isinstance(error, dict) else error)
