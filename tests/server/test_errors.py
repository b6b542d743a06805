"""The error table: every class of the tree has its status and its body, in both modes."""

import json

import pytest

from mindserve import errors
from mindserve.errors import MindserveError
from mindserve.server.errors import INTERNAL, error_event, error_reply
from mindserve.settings.values import ApiMode

EXPECTED = {
    errors.MindserveError: (500, "Incomplete Generation"),
    errors.InvalidRequest: (422, "Input Validation Error"),
    errors.ModelNotFound: (422, "Input Validation Error"),
    errors.PromptTooLong: (424, "Generation Error"),
    errors.PayloadTooLarge: (413, "Payload Too Large"),
    errors.NotFound: (404, "NotFoundError"),
    errors.MethodNotAllowed: (405, "Method Not Allowed"),
    errors.Unauthorized: (401, "Unauthorized"),
    errors.Overloaded: (429, "Overloaded"),
    errors.EngineFailure: (500, "Incomplete Generation"),
    errors.GenerationTimeout: (500, "Incomplete Generation"),
    errors.DuplicateRequest: (500, "Incomplete Generation"),
    errors.NotReady: (503, "Service Unavailable"),
    errors.ConfigError: (500, "Incomplete Generation"),
    errors.ModelLoadError: (422, "Input Validation Error"),
}


def test_the_expectations_cover_the_tree() -> None:
    tree = {v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, MindserveError)}
    assert tree == set(EXPECTED)


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_class_of_errors(kind: type[MindserveError]) -> None:
    status, error_type = EXPECTED[kind]
    error = kind('it "broke"', param="field")
    reply = error_reply(error, ApiMode.VLLM)
    assert reply.status == status
    assert json.loads(reply.body) == {"error": 'it "broke"', "error_type": error_type}
    assert (b"content-length", str(len(reply.body)).encode()) in reply.headers
    native = error_reply(error, ApiMode.NATIVE)
    assert native.status == status
    detail = json.loads(native.body)["error"]
    assert (detail["message"], detail["param"]) == ('it "broke"', "field")
    assert detail["code"] == {"prompt_too_long": "context_length_exceeded"}.get(kind.word, kind.word)
    assert error_event(error, ApiMode.NATIVE) == b"data: " + native.body + b"\n\n"


@pytest.mark.parametrize("mode", ApiMode)
def test_an_unknown_error_shows_nothing(mode: ApiMode) -> None:
    reply = error_reply(ValueError("/secret/path"), mode)
    assert reply.status == 500
    assert INTERNAL.encode() in reply.body
    assert b"secret" not in reply.body


def test_retry_and_challenge_headers() -> None:
    assert dict(error_reply(errors.Overloaded("x"), ApiMode.VLLM).headers)[b"retry-after"] == b"1"
    assert dict(error_reply(errors.Unauthorized("x"), ApiMode.VLLM).headers)[b"www-authenticate"] == b"Bearer"


def test_long_messages_are_cut() -> None:
    assert len(error_reply(errors.InvalidRequest("x" * 10**6), ApiMode.VLLM).body) < 3000
