from collections.abc import Iterator

import pytest

from mindserve.engine.scripted import Answer

from .servers import Server, scripted

STORY = "Once upon a time, \u00e9t\u00e9 \u2014 \U0001f600 \u4f60\u597d, a fox ran over the hill and did not come back."
CALLS = (
    "Let me see.\n<tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
)


def _scripted(tokens_per_step: int) -> Iterator[Server]:
    def says(match: str | None, *texts: str) -> Answer:
        return Answer(match=match, sequences=texts, tokens_per_step=tokens_per_step)

    answers = (
        says("weather", CALLS),
        says("json please", '{"name": "Ann", "grown": true}', '{"name": "Bo", "grown": false}'),
        says("several", "One answer.", "Another, which is longer.", "And a third!"),
        says("why?", "Because."),
        says(None, STORY),
    )
    with scripted(*answers) as server:
        yield server


@pytest.fixture(scope="module", params=["one-token-per-step", "three-tokens-per-step"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Every server that must answer the same streamed or not."""
    yield from _scripted(1 if request.param == "one-token-per-step" else 3)
