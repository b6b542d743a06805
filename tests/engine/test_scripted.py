import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mindserve.engine.base import FinishReason, GenerateRequest, SamplingParams, TokenEvent
from mindserve.engine.scripted import Answer, Script, ScriptedEngine, load_script
from mindserve.errors import ConfigError, EngineFailure, InvalidRequest, NotReady, PromptTooLong
from mindserve.text.bytes_tokenizer import ByteTokenizer

CODEC = ByteTokenizer()
END = 258


@asynccontextmanager
async def _engine(*answers: Answer, **script: Any) -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(Script(answers=answers, **script), codec=CODEC, eos_token_id=END)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def _request(
    prompt: str = "hi", *, n: int = 1, beam: bool = False, mask: Any = None, **sampling: Any
) -> GenerateRequest:
    return GenerateRequest(
        request_id="r",
        prompt_token_ids=CODEC.encode(prompt),
        sampling=SamplingParams(**sampling),
        n=n,
        use_beam_search=beam,
        mask=mask,
    )


async def _events(engine: ScriptedEngine, request: GenerateRequest) -> list[TokenEvent]:
    return [event for step in [step async for step in engine.submit(request)] for event in step]


def _text(events: list[TokenEvent], index: int = 0) -> str:
    return CODEC.decode([token for event in events if event.index == index for token in event.token_ids])


def _ends(events: list[TokenEvent]) -> list[FinishReason]:
    return [event.finish_reason for event in events if event.finish_reason]


async def test_it_says_its_text_token_by_token_and_ends_with_the_end_token() -> None:
    async with _engine(Answer(text="abc", cached_tokens=4)) as engine:
        events = await _events(engine, _request())
    assert [event.token_ids for event in events] == [(97,), (98,), (99,), (END,)]
    assert [event.finish_reason for event in events] == [None, None, None, FinishReason.STOP]
    assert {event.cached_tokens for event in events} == {4}
    assert all(event.logprobs is None for event in events)


async def test_several_tokens_per_step() -> None:
    async with _engine(Answer(text="abcd", tokens_per_step=3)) as engine:
        events = await _events(engine, _request(logprobs=2))
    assert [event.token_ids for event in events] == [(97, 98, 99), (100, END)]
    assert [len(event.logprobs or ()) for event in events] == [3, 2]
    assert all(len(entry.top) == 2 for event in events for entry in event.logprobs or ())


async def test_length_wins_over_stop_on_the_same_token() -> None:
    async with _engine(Answer(text="ab")) as engine:
        assert _ends(await _events(engine, _request(max_tokens=3))) == [FinishReason.LENGTH]
        assert _ends(await _events(engine, _request(max_tokens=4))) == [FinishReason.STOP]
        assert _text(await _events(engine, _request(max_tokens=1))) == "a"


async def test_stop_tokens_stop_even_when_end_tokens_are_ignored() -> None:
    async with _engine(Answer(text="abc")) as engine:
        events = await _events(engine, _request(stop_token_ids=frozenset({98}), ignore_eos=True))
        assert (_text(events), _ends(events)) == ("ab", [FinishReason.STOP])
        events = await _events(engine, _request(ignore_eos=True, max_tokens=6))
        assert [token for event in events for token in event.token_ids] == [97, 98, 99, END, 97, 98]


async def test_the_context_ends_a_sequence() -> None:
    async with _engine(Answer(text="abc"), max_context_len=4) as engine:
        events = await _events(engine, _request("123"))
        assert (_text(events), _ends(events)) == ("ab", [FinishReason.LENGTH])
        with pytest.raises(PromptTooLong):
            engine.submit(_request("12345"))


async def test_answers_match_by_text_and_else_take_turns() -> None:
    answers = Answer(match="weather", text="sun"), Answer(text="one"), Answer(text="two")
    async with _engine(*answers) as engine:
        prompts = ["a", "the weather?", "b", "c"]
        said = [_text(await _events(engine, _request(prompt))) for prompt in prompts]
    assert said == ["one", "sun", "two", "one"]


async def test_sequences_have_their_own_texts_and_one_end_each() -> None:
    async with _engine(Answer(sequences=("a", "bcd"))) as engine:
        steps = [step async for step in engine.submit(_request(n=3))]
    events = [event for step in steps for event in step]
    assert [_text(events, index) for index in range(3)] == ["a", "bcd", "a"]
    assert [event.index for event in steps[0]] == [0, 1, 2]
    assert _ends(events) == [FinishReason.STOP] * 3
    assert {id(event.step) for event in steps[0]} == {id(steps[0][0].step)}


async def test_running_requests_share_steps_and_count_each_other() -> None:
    async with _engine(Answer(text="abc")) as engine:
        both = await asyncio.gather(_events(engine, _request()), _events(engine, _request(n=2)))
    assert {event.step.batch_size for events in both for event in events} == {2}


async def test_figures_can_be_dictated() -> None:
    async with _engine(Answer(text="ab", batch_size=7, queue_wait_us=11)) as engine:
        events = await _events(engine, _request())
    assert {(event.step.batch_size, event.step.queue_wait_us) for event in events} == {(7, 11)}


async def test_it_fails_after_the_tokens_it_is_told() -> None:
    async with _engine(Answer(text="abcd", fail_after=2, failure="boom")) as engine:
        events = await _events(engine, _request())
    assert _text(events) == "ab"
    assert events[-1].finish_reason is FinishReason.ERROR
    assert isinstance(events[-1].error, EngineFailure)
    assert events[-1].error.message == "boom"


async def test_it_refuses() -> None:
    async with _engine(Answer(match="no", refuse="not today"), Answer()) as engine:
        with pytest.raises(NotReady, match="not today"):
            engine.submit(_request("no"))
        with pytest.raises(InvalidRequest, match="adapter"):
            engine.submit(GenerateRequest(request_id="r", prompt_token_ids=[1], adapter="lora"))
        await engine.load_adapter("lora", Path("lora"))
        engine.submit(GenerateRequest(request_id="r", prompt_token_ids=[1], adapter="lora"))


async def test_it_falls_silent_until_it_is_cancelled() -> None:
    async with _engine(Answer(match="sleep", text="abcd", hang_after=2), Answer(text="x")) as engine:
        stream = engine.submit(_request("sleep"))
        steps = aiter(stream)
        assert [(await anext(steps))[0].token_ids for _ in range(2)] == [(97,), (98,)]
        assert _text(await _events(engine, _request())) == "x"
        stream.cancel()
        assert [event.finish_reason for event in await anext(steps)] == [FinishReason.CANCELLED]
        with pytest.raises(StopAsyncIteration):
            await anext(steps)
        assert engine.stats().running == 0


async def test_cancel_ends_one_sequence_or_all_and_only_once() -> None:
    async with _engine(Answer(text="abcdefgh"), step_interval_s=0.001) as engine:
        stream = engine.submit(_request(n=3))
        steps = aiter(stream)
        await anext(steps)
        stream.cancel(1)
        stream.cancel(1)
        rest = [event async for step in steps for event in step]
    assert [event.index for event in rest if event.finish_reason is FinishReason.CANCELLED] == [1]
    assert sorted(event.index for event in rest if event.finish_reason) == [0, 1, 2]


async def test_close_cancels_what_runs_and_refuses_what_comes() -> None:
    async with _engine(Answer(text="abcd", hang_after=0)) as engine:
        stream = engine.submit(_request(n=2))
        await engine.close()
        assert not engine.is_healthy
        assert _ends([event async for step in stream for event in step]) == [FinishReason.CANCELLED] * 2
        with pytest.raises(NotReady):
            engine.submit(_request())


async def test_beam_hypotheses_come_whole_at_the_end_best_first() -> None:
    async with _engine(Answer(sequences=("gg", "hhh"))) as engine:
        steps = [step async for step in engine.submit(_request(n=2, beam=True, logprobs=0))]
    (events,) = steps
    assert [event.index for event in events] == [0, 1]
    assert [_text(events, index) for index in (0, 1)] == ["hhh", "gg"]
    assert [len(event.token_ids) for event in events] == [len(event.logprobs or ()) for event in events] == [4, 3]
    assert _ends(events) == [FinishReason.STOP] * 2


class DigitsMask:
    """Allows digits, and an end after two of them."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def allowed(self) -> NDArray[np.uint32]:
        bits = np.zeros(9, np.uint32)
        for token in range(48, 58) if self.count < 2 else [END]:
            bits[token // 32] |= np.uint32(1 << token % 32)
        return bits

    def advance(self, token_id: int) -> None:
        assert token_id in range(48, 58) or token_id == END
        self.count += 1

    def fork(self) -> "DigitsMask":
        return DigitsMask(self.count)


async def test_masks_are_obeyed_and_violations_reported() -> None:
    async with _engine(Answer(sequences=("7a", "42"))) as engine:
        events = await _events(engine, _request(n=2, mask=DigitsMask()))
        assert [_text(events, index) for index in (0, 1)] == ["70", "42"]
        assert _ends(events) == [FinishReason.STOP] * 2
        assert list(engine.violations) == [("r", 0, ord("a")), ("r", 0, ord("a"))]


class BrokenMask(DigitsMask):
    """Raises at its second token."""

    def advance(self, token_id: int) -> None:
        if self.count == 1:
            raise ValueError("broken")
        super().advance(token_id)

    def fork(self) -> "BrokenMask":
        return BrokenMask(self.count)


async def test_a_broken_mask_fails_its_request_alone() -> None:
    async with _engine(Answer(text="12")) as engine:
        broken, fine = await asyncio.gather(
            _events(engine, _request(mask=BrokenMask())), _events(engine, _request(mask=DigitsMask()))
        )
    assert _ends(broken) == [FinishReason.ERROR]
    assert (_text(fine), _ends(fine)) == ("12", [FinishReason.STOP])


def test_a_script_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"step_interval_s": 0.02, "answers": [{"match": "x", "text": "y"}, {"text": "z"}]}))
    script = load_script(path)
    assert script.step_interval_s == 0.02
    assert [(answer.match, answer.text) for answer in script.answers] == [("x", "y"), (None, "z")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "script.json"),
        ('{"answers": [{"texts": "y"}]}', "texts"),
        ('{"answers": [{"match": "x"}]}', "without `match`"),
        ('{"answers": []}', "without `match`"),
    ],
)
def test_a_bad_script_is_a_configuration_error(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "script.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_script(path)
    with pytest.raises(ConfigError):
        load_script(tmp_path / "absent.json")


async def test_a_cancelled_beam_search_ends_every_sequence_once() -> None:
    async with _engine(Answer(sequences=("a", "a long hypothesis")), step_interval_s=0.001) as engine:
        stream = engine.submit(_request(n=2, beam=True))
        await asyncio.sleep(0.01)  # the first has ended and is held
        stream.cancel()
        stream.cancel()
        events = [event for step in [step async for step in stream] for event in step]
    assert sorted(event.index for event in events) == [0, 1]
    assert sorted(_ends(events)) == [FinishReason.CANCELLED, FinishReason.STOP]
