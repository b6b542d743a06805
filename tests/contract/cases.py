"""The request conformance cases as requests to send and answers to expect.

`tests/data/contract/request-cases.json` holds them in a compact form that its `meta` explains. A case that says nothing
about `stream` holds for the full answer and for the stream, so that it becomes two.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from mindserve.settings.values import ApiMode

CASES_FILE = Path(__file__).parents[1] / "data" / "contract" / "request-cases.json"

DECIDED_LATER: Mapping[str, str] = {
    "http-unknown-path": "server",
    "http-body-over-maxRequestLength": "server",
    "timeout-e2e-non-stream": "engine",
    "prompt-tokens-over-maxInputTokenLen": "tokenizer",
    "prompt-tokens-limit-is-min-of-both": "tokenizer",
    "tools-model-without-function-call": "template",
    "mm-image-data-bad-base64": "media",
    "mm-image-data-not-an-image": "media",
    "mm-image-raw-not-base64": "media",
    "mm-local-outside-dir": "media",
    "mm-local-traversal": "media",
    "mm-local-prefix-trick": "media",
    "mm-local-symlink": "media",
    "mm-local-wrong-extension": "media",
    "mm-local-path-too-long": "media",
    "mm-http-not-whitelisted": "media",
    "mm-http-subdomain-not-whitelisted": "media",
    "mm-http-userinfo-trick": "media",
    "mm-http-no-whitelist-configured": "media",
    "mm-http-404": "media",
    "mm-http-url-over-4096": "media",
    "mm-image-over-40MB": "media",
    "mm-video-raw-base64-not-supported": "media",
    "mm-audio-raw-base64-not-supported": "media",
}
"""Refusals that validation alone does not make: name of the case and who makes it."""


class Way(StrEnum):
    """How the answer is asked for."""

    AS_SENT = "as-sent"
    """The case itself says, or its body is sent as it is."""
    FULL = "full"
    STREAM = "stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request and what the answer must be."""

    name: str
    way: Way
    body: bytes
    status: int
    error_contains: str | None
    """Part of the error text; None: any text, or no error."""
    error_type: str | None
    """Exact `error_type` in vLLM mode; None: not looked at."""
    mode: ApiMode
    method: str
    path: str
    headers: Mapping[str, str]
    needs: frozenset[str]
    """What the server under test must have: vision, tools-template, beam, ..."""
    config: Mapping[str, Any]
    """The whole config.json: the assumed one with the case's own keys merged over it."""
    is_configured: bool
    """Whether the case brings keys of its own, so that the common server does not do."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cost: str | None = None
    """Why the case is heavy."""

    @property
    def id(self) -> str:
        """Unique, readable, fit for `pytest.param`."""
        return self.name if self.way is Way.AS_SENT else f"{self.name}[{self.way}]"

    @property
    def server_key(self) -> str:
        """The same for cases that one server can answer: its configuration and environment."""
        return json.dumps([self.config, dict(self.env)], sort_keys=True)

    @property
    def is_decided_later(self) -> bool:
        """Whether validation lets the request pass and another room refuses it."""
        return self.name in DECIDED_LATER


def load_cases(placeholders: Mapping[str, str]) -> list[Case]:
    """All cases, `$NAME` replaced by `placeholders["NAME"]` (`meta.placeholders` lists the names)."""
    return list(_expand(json.loads(CASES_FILE.read_text(encoding="utf-8")), placeholders))


def _expand(data: dict[str, Any], placeholders: Mapping[str, str]) -> Iterator[Case]:
    fill = _Placeholders(placeholders)
    meta = data["meta"]
    for raw in data["cases"]:
        config = _merge(meta["assumed_config"], fill.in_value(raw.get("config", {})))
        for way in _ways(raw):
            yield Case(
                name=raw["name"],
                way=way,
                body=_body(raw["request"], meta["base_request"], way, fill),
                status=raw["expect"]["status"],
                error_contains=raw["expect"].get("error_contains"),
                error_type=raw["expect"].get("error_type"),
                mode=ApiMode.NATIVE if raw.get("mode") == "openai" else ApiMode.VLLM,
                method=raw.get("method", meta["method"]),
                path=raw.get("path", meta["path"]),
                headers=raw.get("headers", {}),
                needs=frozenset(raw.get("needs", ())),
                config=config,
                is_configured="config" in raw,
                env=raw.get("env", {}),
                cost=raw.get("cost"),
            )


def _ways(raw: dict[str, Any]) -> tuple[Way, ...]:
    request = raw["request"]
    if "stream" in request or "$raw" in request or "$raw_hex" in request:
        return (Way.AS_SENT,)
    return (Way.FULL,) if raw.get("ways") == ["full"] else (Way.FULL, Way.STREAM)


def _body(request: dict[str, Any], base: dict[str, Any], way: Way, fill: "_Placeholders") -> bytes:
    if "$raw" in request:
        return fill.in_text(request["$raw"]).encode()
    if "$raw_hex" in request:
        return bytes.fromhex(request["$raw_hex"])
    removed = request.get("$delete", [])
    merged = {key: value for key, value in (base | request).items() if key != "$delete" and key not in removed}
    if way is Way.STREAM:
        merged["stream"] = True
    return json.dumps(fill.in_value(merged), ensure_ascii=False).encode()


class _Placeholders:
    """Replaces `$NAME` in strings and carries out the value directives (`$repeat`, `$concat`, ...)."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        names = sorted(values, key=len, reverse=True)  # $MODEL_UPPER before $MODEL
        self._pattern = re.compile(r"\$(" + "|".join(map(re.escape, names)) + ")") if names else re.compile(r"(?!)")

    def in_text(self, text: str) -> str:
        return self._pattern.sub(lambda match: self._values[match[1]], text)

    def in_value(self, value: Any) -> Any:
        match value:
            case str():
                return self.in_text(value)
            case list():
                return [self.in_value(item) for item in value]
            case {"$repeat": [text, count]}:
                return self.in_text(text) * count
            case {"$repeat_list": [item, count]}:
                return [self.in_value(item)] * count
            case {"$concat": lists}:
                return [item for part in lists for item in self.in_value(part)]
            case {"$concat_str": texts}:
                return "".join(self.in_value(text) for text in texts)
            case dict():
                return {key: self.in_value(item) for key, item in value.items()}
            case _:
                return value


def _merge(base: Any, over: Any) -> Any:
    """Objects key by key, lists of objects index by index, anything else replaced."""
    if isinstance(base, dict) and isinstance(over, dict):
        return base | {key: _merge(base.get(key), value) for key, value in over.items()}
    if isinstance(base, list) and isinstance(over, list) and over and all(isinstance(item, dict) for item in over):
        return [_merge(base[i] if i < len(base) else {}, item) for i, item in enumerate(over)] + base[len(over) :]
    return over
