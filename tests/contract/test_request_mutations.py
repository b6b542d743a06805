"""Whatever is sent, validation answers with a request or with a bounded error, and with nothing else."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.mutations import KEYS, VALID_REQUESTS, mutants

from mindserve.contract.context import ValidationContext
from mindserve.contract.request import ChatRequest, PartKind
from mindserve.contract.validate import parse_request
from mindserve.errors import InvalidRequest
from mindserve.settings.values import ApiMode

MAX_MESSAGE_CHARS = 400
"""The longest text, with 200 characters of input in it."""


def context(mode: ApiMode) -> ValidationContext:
    return ValidationContext(models={"m": None}, mode=mode, media=frozenset(PartKind))


def outcome(body: bytes, mode: ApiMode) -> ChatRequest | InvalidRequest:
    """Anything but InvalidRequest is a failure of the test."""
    try:
        return parse_request(body, context(mode))
    except InvalidRequest as error:
        assert 0 < len(error.message) <= MAX_MESSAGE_CHARS
        return error


@pytest.mark.parametrize("mode", ApiMode)
@pytest.mark.parametrize("request_", VALID_REQUESTS)
def test_the_seeds_are_valid(request_: dict[str, Any], mode: ApiMode) -> None:
    body = json.dumps({"model": "m", "max_tokens": 1, **request_}).encode()
    assert isinstance(outcome(body, mode), ChatRequest)


@pytest.mark.parametrize("mode", ApiMode)
def test_mutants(mode: ApiMode) -> None:
    outcomes = [outcome(mutant.body, mode) for mutant in itertools.islice(mutants(20240229, model="m"), 3000)]
    accepted = sum(isinstance(result, ChatRequest) for result in outcomes)
    texts = {result.message[:40] for result in outcomes if isinstance(result, InvalidRequest)}
    assert 300 < accepted < 2000
    assert len(texts) > 70


def test_mutants_are_reproducible() -> None:
    first, again = (list(itertools.islice(mutants(5, model="m"), 200)) for _ in range(2))
    assert first == again
    assert len({mutant.body for mutant in first}) > 150


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**30), max_value=10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["function", "text", "json_schema", "none", "assistant", "tool", "image_url"])
)
NAMES = st.sampled_from(
    ["type", "function", "name", "role", "content", "text", "url", "schema", "json_schema", "properties", "items", "id"]
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4), mode=st.sampled_from(list(ApiMode)))
def test_any_json_in_any_field(changes: dict[str, Any], mode: ApiMode) -> None:
    request = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **changes}
    outcome(json.dumps(request).encode("utf-8", "surrogatepass"), mode)


@settings(max_examples=300, deadline=None)
@given(message=st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "tool_call_id"]), JSON, max_size=4))
def test_any_json_in_a_message(message: dict[str, Any]) -> None:
    outcome(json.dumps({"model": "m", "messages": [message]}).encode("utf-8", "surrogatepass"), ApiMode.VLLM)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(body: bytes) -> None:
    assert isinstance(outcome(body, ApiMode.VLLM), InvalidRequest)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_cut_of_a_valid_request(data: st.DataObject) -> None:
    whole = json.dumps({"model": "m", **VALID_REQUESTS[4]}).encode()
    place = data.draw(st.integers(min_value=0, max_value=len(whole) - 1))
    assert isinstance(outcome(whole[:place], ApiMode.VLLM), InvalidRequest)
