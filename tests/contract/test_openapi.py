"""The documentation says what the rules do, for both modes."""

import json
from typing import Any

import pytest
from tests.contract.asking import NATIVE, VLLM, accepted, refused

from mindserve.contract.fields import Kind, Scalar
from mindserve.contract.openapi import openapi_document
from mindserve.contract.parameters import MODE_RULES
from mindserve.settings.values import ApiMode

CONTEXTS = {ApiMode.VLLM: VLLM, ApiMode.NATIVE: NATIVE}


def request_properties(mode: ApiMode) -> dict[str, Any]:
    return openapi_document(mode)["components"]["schemas"]["ChatRequest"]["properties"]


@pytest.mark.parametrize("mode", ApiMode)
def test_every_parameter_is_described(mode: ApiMode) -> None:
    properties = request_properties(mode)
    names = {"model", "messages", "tools", "tool_choice", "response_format", "chat_template_kwargs", "chat_template"}
    assert names | {field.name for field in MODE_RULES[mode].fields} <= set(properties)
    assert ("stream_options" in properties) == (mode is ApiMode.NATIVE)
    assert all(schema["description"] for schema in properties.values())


@pytest.mark.parametrize("mode", ApiMode)
def test_references_resolve_and_the_document_is_json(mode: ApiMode) -> None:
    document = openapi_document(mode)
    text = json.dumps(document)
    schemas = document["components"]["schemas"]
    referred = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert referred <= set(schemas)
    assert {"ChatRequest", "TokenizerRequest", "StopRequest"} <= referred
    answer = "VllmCompletion" if mode is ApiMode.VLLM else "NativeCompletion"
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert answer in json.dumps(chat["responses"]["200"])
    assert {"413", "422", "424", "429", "500", "503"} <= set(chat["responses"])


def border_values(schema: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Values just inside and just outside a documented range."""
    is_integer = "integer" in schema["type"]
    step = 1 if is_integer else 1e-9
    inside, outside = [schema["maximum"]], [schema["maximum"] + step if is_integer else schema["maximum"] * 1.001]
    if "exclusiveMinimum" in schema:
        inside.append(schema["exclusiveMinimum"] + step)
        outside.append(schema["exclusiveMinimum"])
    else:
        inside.append(schema["minimum"])
        outside.append(schema["minimum"] - step)
    return inside, outside


@pytest.mark.parametrize("mode", ApiMode)
def test_documented_ranges_are_the_checked_ones(mode: ApiMode) -> None:
    checked = 0
    for field in MODE_RULES[mode].fields:
        if not isinstance(field, Scalar) or field.kind is Kind.BOOLEAN:
            continue
        schema = request_properties(mode)[field.name]
        limits = schema["anyOf"][0] | {"type": [schema["anyOf"][0]["type"]]} if "anyOf" in schema else schema
        inside, outside = border_values(limits)
        for value in inside:
            assert accepted(CONTEXTS[mode], **{field.name: value}), (field.name, value)
        for value in outside:
            assert refused(CONTEXTS[mode], **{field.name: value}).param == field.name
        checked += 1
    assert checked >= 11


@pytest.mark.parametrize("mode", ApiMode)
def test_examples_and_defaults_are_valid(mode: ApiMode) -> None:
    schema = openapi_document(mode)["components"]["schemas"]["ChatRequest"]
    assert accepted(CONTEXTS[mode], **(schema["examples"][0] | {"model": "m"}))
    for name, described in schema["properties"].items():
        for value in described.get("examples", []):
            assert accepted(CONTEXTS[mode], **{name: value})
        if "default" in described and name != "best_of":
            assert accepted(CONTEXTS[mode], **{name: described["default"]})
