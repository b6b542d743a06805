"""Bodies of the tokenizer, of stopInfer and of the adapters' endpoints."""

import json
from typing import Any

import msgspec
import pytest

from mindserve.contract.bodies import (
    LoadAdapterRequest,
    StopRequest,
    TokenizerRequest,
    UnloadAdapterRequest,
    is_request_id,
    parse_body,
)
from mindserve.errors import InvalidRequest


def parsed(kind: type[msgspec.Struct], **fields: Any) -> Any:
    return parse_body(json.dumps(fields).encode(), kind, max_json_depth=64)


def refused(kind: type[msgspec.Struct], body: bytes) -> str:
    with pytest.raises(InvalidRequest) as caught:
        parse_body(body, kind, max_json_depth=64)
    assert len(caught.value.message) <= 200
    return caught.value.message


def test_tokenizer() -> None:
    assert parsed(TokenizerRequest, inputs="Hi", other=1) == TokenizerRequest(inputs="Hi", do_decode=True)
    assert parsed(TokenizerRequest, inputs="Hi", do_decode=False).do_decode is False
    assert "inputs" in refused(TokenizerRequest, b"{}")
    assert "inputs" in refused(TokenizerRequest, b'{"inputs":5}')
    assert "inputs" in refused(TokenizerRequest, b'{"inputs":""}')
    assert "do_decode" in refused(TokenizerRequest, b'{"inputs":"x","do_decode":1}')


@pytest.mark.parametrize("kind", [TokenizerRequest, StopRequest, LoadAdapterRequest, UnloadAdapterRequest])
def test_body_must_be_an_object(kind: type[msgspec.Struct]) -> None:
    assert refused(kind, b"[]") == "The request body must be a JSON object"
    assert refused(kind, b"null") == "The request body must be a JSON object"
    assert refused(kind, b"{") == "Failed to parse request context to json"
    assert "maxJsonDepth" in refused(kind, b"[" * 100_000)


@pytest.mark.parametrize("request_id", ["a", "endpoint_common_0", "chatcmpl-1", "x" * 256])
def test_request_id(request_id: str) -> None:
    assert is_request_id(request_id)
    assert parsed(StopRequest, id=request_id).id == request_id


@pytest.mark.parametrize("request_id", ["", "a b", "a\n", "ä", "x" * 257, "a/b"])
def test_request_id_refused(request_id: str) -> None:
    assert not is_request_id(request_id)
    assert "id" in refused(StopRequest, json.dumps({"id": request_id}).encode())


def test_stop_needs_an_id() -> None:
    assert "id" in refused(StopRequest, b"{}")
    assert "id" in refused(StopRequest, b'{"id":null}')


def test_adapters() -> None:
    loading = parsed(LoadAdapterRequest, lora_name="a.b-1", lora_path="/adapters/a")
    assert (loading.lora_name, loading.lora_path) == ("a.b-1", "/adapters/a")
    assert parsed(UnloadAdapterRequest, lora_name="a").lora_name == "a"
    assert "lora_path" in refused(LoadAdapterRequest, b'{"lora_name":"a"}')
    for name in ("", ".a", "a.", "a b", "x" * 257, "a\n"):
        body = json.dumps({"lora_name": name, "lora_path": "x"}).encode()
        assert "lora_name" in refused(LoadAdapterRequest, body)
        assert "lora_name" in refused(UnloadAdapterRequest, body)
