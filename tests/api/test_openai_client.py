"""OpenAI's own client, in both modes."""

from collections.abc import Iterator

import openai
import pytest

from mindserve.settings.values import ApiMode
from tests.api.running import MODEL, Running, running, settings_for, with_server

GREETING = "Hello! How can I help you today?"


@pytest.fixture(scope="module", params=list(ApiMode))
def served(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(with_server(settings_for(), api_mode=request.param, api_key="secret")) as server:
        yield server


@pytest.fixture
def client(served: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url + "/v1", api_key="secret", max_retries=0)


def test_answers_and_streams(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    assert answer.choices[0].message.content == GREETING
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(GREETING) + 1
    stream = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True)
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == GREETING
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert [model.id for model in client.models.list()] == [MODEL]


def test_errors_have_their_classes(client: openai.OpenAI, served: Running) -> None:
    with pytest.raises(openai.UnprocessableEntityError):
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "fail"}])
    stranger = openai.OpenAI(base_url=served.url + "/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with pytest.raises(openai.APIError):
        list(client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "fail"}], stream=True))
