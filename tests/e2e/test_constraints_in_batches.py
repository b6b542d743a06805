"""Constrained sequences beside free ones on the embedded engine: in one batch, with n, and with the prefix cache."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from .bodies import PERSON_FORMAT, TIME, WEATHER, Json
from .conftest import native
from .fold import assert_same
from .servers import Server

PREAMBLE = "Here is all that is known about them. " * 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with native(tmp_path_factory.mktemp("prepared")) as up:
        yield up


def _said(text: str, seed: int, **fields: Any) -> Json:
    return {"messages": [{"role": "user", "content": text}], "seed": seed, "max_tokens": 120, **fields}


def _named(name: str) -> Json:
    return {"type": "function", "function": {"name": name}}


def _mixed() -> list[Json]:
    return [
        _said("Tell me a story.", 1, ignore_eos=True),
        _said("Who?", 2, response_format=PERSON_FORMAT, n=3),
        _said("Tell me another.", 3, temperature=0, ignore_eos=True),
        _said("Weather?", 4, tools=[WEATHER, TIME], tool_choice="required", max_tokens=200),
        _said("Who else?", 5, response_format=PERSON_FORMAT, logprobs=True, top_logprobs=3),
        _said("Time?", 6, tools=[WEATHER, TIME], tool_choice=_named("get_time"), repetition_penalty=1.2),
        _said("And?", 7, n=2, top_p=0.9, ignore_eos=True),
        _said("Who, briefly?", 8, response_format=PERSON_FORMAT, temperature=0),
    ]


def _choices(answer: Json) -> list[Json]:
    for choice in answer["choices"]:
        for call in choice["message"]["tool_calls"]:
            call.pop("id")
    return answer["choices"]


def _is_person(choice: Json) -> bool:
    person = json.loads(choice["message"]["content"])
    return (
        choice["finish_reason"] == "stop"
        and sorted(person) == ["grown", "name"]
        and person["name"] in ("Ann", "Bo")
        and isinstance(person["grown"], bool)
    )


def test_a_batch_of_all_kinds_answers_as_each_alone(server: Server) -> None:
    bodies = _mixed()
    alone = [_choices(server.full(body)) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as threads:
        together = list(threads.map(server.streamed, bodies))
    assert max(size for answer in together for size in answer["usage"]["batch_size"]) > 4
    for one, answer in zip(alone, together, strict=True):
        assert_same(_choices(answer), one)
    for body, choices in zip(bodies, alone, strict=True):
        if "response_format" in body:
            assert all(map(_is_person, choices))
        if "tools" in body:
            assert {choice["finish_reason"] for choice in choices} == {"tool_calls"}


def test_each_of_n_sequences_goes_its_own_way_through_the_grammar(server: Server) -> None:
    choices = server.full(_said("Who are they?", 9, response_format=PERSON_FORMAT, n=12, temperature=1.5))["choices"]
    assert len(choices) == 12
    assert all(map(_is_person, choices))
    assert len({json.dumps(json.loads(choice["message"]["content"])) for choice in choices}) > 1


def test_a_cached_prompt_is_constrained_afresh(server: Server) -> None:
    """The cache holds what the model made of the prompt, and nothing of who was allowed to say what."""
    free = _said(PREAMBLE + "Go on.", 10, ignore_eos=True)
    bound = _said(PREAMBLE + "Go on.", 10, response_format=PERSON_FORMAT, n=2)
    first_bound, first_free = server.full(bound), server.full(free)
    second_bound, second_free = server.full(bound), server.full(free)
    for answer in (first_free, second_bound, second_free):
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
    assert_same(_choices(second_bound), _choices(first_bound))
    assert_same(_choices(second_free), _choices(first_free))
    assert all(map(_is_person, second_bound["choices"]))


def test_beams_and_grammars_are_refused_by_name(server: Server) -> None:
    refused = server.post(_said("Who?", 11, response_format=PERSON_FORMAT, use_beam_search=True))
    assert refused.status_code == 422
    assert "response_format" in refused.json()["error"]


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "object", "properties": {"x": {"not": {}}}}, "not"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    ],
)
def test_schemas_that_cannot_be_enforced_are_refused_by_name(server: Server, schema: Json, keyword: str) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    for is_stream in (False, True):
        refused = server.post(_said("Who?", 12, response_format=wanted, stream=is_stream))
        assert refused.status_code == 422
        assert keyword in refused.json()["error"]
