"""Conversations over HTTP: each turn finds what the turns before it left in the prefix cache."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import pytest

from mindserve.engine.base import GenerateRequest, TokenEvent, TokenStream
from mindserve.engine.native.step import BLOCK_SIZE

from .bodies import Json
from .demo_models import SMOLLM2, serving
from .servers import Server, eventually

QUESTIONS = (
    "Tell me what bread is made of, please, and how it is baked in a wood-fired oven.",
    "And how is it kept fresh?",
    "Which of these is the most important?",
)


@dataclass
class Turn:
    """What the engine was asked, and what it answered."""

    prompt: list[int]
    generated: list[int] = field(default_factory=list[int])

    @property
    def computed(self) -> list[int]:
        """Tokens whose keys and values are known: all but the last, which nothing came after."""
        return [*self.prompt, *self.generated][:-1]


class Recorder:
    """Stands before a server's engine and listens."""

    def __init__(self, server: Server, patch: pytest.MonkeyPatch) -> None:
        self.turns: list[Turn] = []
        self._submit = server.service.engine.submit
        patch.setattr(server.service.engine, "submit", self.submit)

    def submit(self, request: GenerateRequest) -> TokenStream:
        turn = Turn(list(request.prompt_token_ids))
        self.turns.append(turn)
        return _Heard(self._submit(request), turn)


class _Heard:
    def __init__(self, stream: TokenStream, turn: Turn) -> None:
        self._stream, self._turn = stream, turn
        self.cancel = stream.cancel

    async def __aiter__(self) -> AsyncIterator[list[TokenEvent]]:
        async for events in self._stream:
            self._turn.generated += [token for event in events for token in event.token_ids]
            yield events


def _common(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(SMOLLM2) as up:
        yield up


def test_a_turn_reuses_all_full_blocks_of_the_turns_before(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(server, monkeypatch)
    messages: list[Json] = []
    usages: list[Json] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        answer = server.full({"messages": messages, "temperature": 0, "max_tokens": 50})
        messages.append(answer["choices"][0]["message"] | {"tool_calls": None})
        usages.append(answer["usage"])
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    for i in (1, 2):
        before, now = recorder.turns[i - 1], recorder.turns[i]
        assert cached[i] == _common(before.computed, now.prompt) // BLOCK_SIZE * BLOCK_SIZE
        # The template writes the history anew, and comes to the same tokens: all full blocks are found.
        assert cached[i] == len(before.computed) // BLOCK_SIZE * BLOCK_SIZE
        assert cached[i] > cached[i - 1]
    stats = server.service.engine.stats()
    eventually(lambda: server.metric("npu_prefix_cache_hit_rate") > 0)
    assert server.metric("npu_prefix_cache_hit_rate") == pytest.approx(stats.prefix_hits / stats.prefix_queries)
