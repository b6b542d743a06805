"""The OpenAPI document of the service plane, derived from the rules that check requests and the types of answers."""

from collections.abc import Mapping
from typing import Any

import msgspec

from mindserve.contract import bodies, response
from mindserve.contract.request_schema import request_schema
from mindserve.settings.values import ApiMode

_VLLM_ANSWERS = (response.VllmCompletion, response.VllmChunk, response.VllmError)
_NATIVE_ANSWERS = (response.NativeCompletion, response.NativeChunk, response.NativeError)
_BODIES = (bodies.TokenizerRequest, bodies.TokenizerResponse, bodies.StopRequest)

_ERRORS = {
    "413": "The body is larger than maxRequestLength.",
    "422": "The request breaks a rule of the contract.",
    "424": "The prompt has more tokens than the configured limits.",
    "429": "Too many requests are running and waiting; Retry-After says when to come again.",
    "500": "The engine failed, or a timeout passed.",
    "503": "The server is starting or stopping.",
}


def openapi_document(mode: ApiMode) -> dict[str, Any]:
    """OpenAPI 3.1 for the mode in force."""
    completion, chunk, error = _VLLM_ANSWERS if mode is ApiMode.VLLM else _NATIVE_ANSWERS
    _, components = msgspec.json.schema_components(
        (completion, chunk, error, *_BODIES), ref_template="#/components/schemas/{name}"
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "mindserve", "version": "1"},
        "paths": {
            "/v1/chat/completions": {"post": _chat(completion.__name__, chunk.__name__, error.__name__)},
            "/v1/models": {"get": _operation("List the model and its adapters.", error=error.__name__)},
            "/v1/models/{model}": {
                "parameters": [_path_parameter("model")],
                "get": _operation("Describe the model or an adapter.", error=error.__name__),
            },
            "/v1/tokenizer": {
                "post": _operation(
                    "Count and spell the tokens of a text.",
                    error=error.__name__,
                    body=_reference("TokenizerRequest"),
                    answer=_reference("TokenizerResponse"),
                )
            },
            "/v2/models/{model}/stopInfer": {
                "parameters": [_path_parameter("model")],
                "post": _operation(
                    "End a running request; it answers with what it has.",
                    error=error.__name__,
                    body=_reference("StopRequest"),
                    answer=_reference("StopRequest"),
                ),
            },
        },
        "components": {"schemas": {"ChatRequest": request_schema(mode), **components}},
    }


def _chat(completion: str, chunk: str, error: str) -> dict[str, Any]:
    operation = _operation(
        "Answer a conversation, whole or as server-sent events.",
        error=error,
        body=_reference("ChatRequest"),
        answer=_reference(completion),
    )
    operation["responses"]["200"]["content"]["text/event-stream"] = {
        "schema": {**_reference(chunk), "description": "Each event's data is one such object; the last is [DONE]."}
    }
    return operation


def _operation(
    summary: str, *, error: str, body: Mapping[str, Any] | None = None, answer: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Success."}
    success["content"] = {"application/json": {"schema": answer or {"type": "object"}}}
    failures = {
        status: {"description": text, "content": {"application/json": {"schema": _reference(error)}}}
        for status, text in _ERRORS.items()
    }
    operation: dict[str, Any] = {"summary": summary, "responses": {"200": success, **failures}}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}
