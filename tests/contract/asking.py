"""Short ways to send one changed request through validation."""

import json
from typing import Any

import pytest

from mindserve.contract import ValidationContext, parse_request
from mindserve.contract.request import ChatRequest, PartKind
from mindserve.errors import InvalidRequest
from mindserve.settings.values import ApiMode

VLLM = ValidationContext(models={"m": None, "adapter": None})
NATIVE = ValidationContext(models={"m": None}, mode=ApiMode.NATIVE)
MULTIMODAL = ValidationContext(models={"m": None}, media=frozenset(PartKind))

HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def accepted(context: ValidationContext = VLLM, /, **fields: Any) -> ChatRequest:
    """The request with these fields replaced."""
    return parse_request(body(**fields), context)


def refused(context: ValidationContext = VLLM, /, **fields: Any) -> InvalidRequest:
    """The error that the request with these fields replaced meets."""
    with pytest.raises(InvalidRequest) as caught:
        parse_request(body(**fields), context)
    return caught.value


def body(**fields: Any) -> bytes:
    """A minimal request with these fields replaced."""
    return json.dumps({"model": "m", "messages": HELLO, **fields}).encode()


def user(*parts: Any) -> list[dict[str, Any]]:
    """One user message with these content parts."""
    return [{"role": "user", "content": list(parts)}]
