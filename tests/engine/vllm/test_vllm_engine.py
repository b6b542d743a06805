"""The engine over a small stand-in for vLLM: order, ends, steps, cancelling, death."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from fake_core import EOS, FakeCore, logits_after, logprobs_after

from mindserve.engine.base import FinishReason, GenerateRequest, SamplingParams, TokenEvent
from mindserve.engine.vllm.engine import VllmEngine
from mindserve.engine.vllm.figures import Figures
from mindserve.engine.vllm.model import ModelFacts
from mindserve.errors import EngineFailure, InvalidRequest, ModelLoadError, NotReady, PromptTooLong
from mindserve.settings.values import ModelSettings, Settings

LLAMA = Path(__file__).parents[2] / "data" / "goldens" / "llama"
PROMPT = [3, 5, 8]


class Bench:
    """An engine and the core beneath it."""

    def __init__(self, core: FakeCore) -> None:
        self.core = core
        model = ModelSettings(name="m", path=LLAMA / "model", max_seq_len=512, max_input_len=500)
        self.engine = VllmEngine(Settings(model=model), open_core=self._open)

    def _open(self, settings: Settings, facts: ModelFacts, figures: Figures) -> FakeCore:
        self.core.figures = figures
        return self.core

    def submit(self, *, n: int = 1, adapter: str | None = None, beams: bool = False, **sampling: object):
        options = {"temperature": 0.0, "max_tokens": 6} | sampling
        request = GenerateRequest(
            request_id="r",
            prompt_token_ids=PROMPT,
            sampling=SamplingParams(**options),
            n=n,
            adapter=adapter,
            use_beam_search=beams,
        )
        return self.engine.submit(request)

    async def steps(self, **options: object) -> list[list[TokenEvent]]:
        return [step async for step in self.submit(**options)]

    async def events(self, **options: object) -> list[TokenEvent]:
        return [event for step in await self.steps(**options) for event in step]


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(FakeCore())
    await made.engine.start()
    yield made
    await made.engine.close()


def greedy(count: int) -> list[int]:
    tokens = tuple(PROMPT)
    for _ in range(count):
        tokens = (*tokens, int(logits_after(tokens).argmax()))
    return list(tokens[len(PROMPT) :])


async def test_every_token_is_an_event_and_every_step_a_list(bench: Bench) -> None:
    steps = await bench.steps()
    assert [[event.token_ids for event in step] for step in steps] == [[(token,)] for token in greedy(6)]
    assert [step[0].finish_reason for step in steps] == [None] * 5 + [FinishReason.LENGTH]


async def test_siblings_share_lists_and_are_one_request(bench: Bench) -> None:
    steps = await bench.steps(n=3, temperature=1.0, seed=4)
    assert [[event.index for event in step] for step in steps] == [[0, 1, 2]] * 6
    assert {event.step.batch_size for step in steps for event in step} == {1}
    assert len({tuple(step[i].token_ids for step in steps) for i in range(3)}) == 3
    assert [name for name, _ in bench.core.asked] == ["r-0", "r-1", "r-2"]


async def test_a_step_counts_its_requests(bench: Bench) -> None:
    answers = await asyncio.gather(bench.steps(n=2, temperature=1.0), bench.steps(), bench.steps())
    assert {event.step.batch_size for steps in answers for step in steps for event in step} == {3}


async def test_only_the_first_step_has_a_wait(bench: Bench) -> None:
    waits = [step[0].step.queue_wait_us for step in await bench.steps()]
    assert waits == [250_000, 0, 0, 0, 0, 0]
    assert {event.cached_tokens for event in await bench.events()} == {2}


async def test_tokens_that_come_together_are_steps_one_after_the_other(bench: Bench) -> None:
    bench.core.stride = 4
    steps = await bench.steps(logprobs=0)
    assert [step[0].token_ids for step in steps] == [(token,) for token in greedy(6)]
    assert [len(step) for step in steps] == [1] * 6
    assert [step[0].step.queue_wait_us > 0 for step in steps] == [True] + [False] * 5
    assert all(len(step[0].logprobs or ()) == 1 for step in steps)


async def test_a_stop_token_ends_with_its_own_event(bench: Bench) -> None:
    tokens = greedy(6)
    events = await bench.events(stop_token_ids=frozenset({tokens[2]}))
    assert [event.token_ids[0] for event in events] == tokens[:3]
    assert events[-1].finish_reason is FinishReason.STOP


async def test_the_length_wins_over_a_stop_token(bench: Bench) -> None:
    token = greedy(1)[0]
    (event,) = await bench.events(max_tokens=1, stop_token_ids=frozenset({token}))
    assert event.finish_reason is FinishReason.LENGTH


async def test_logprobs_are_the_chosen_ones_and_their_best_rivals(bench: Bench) -> None:
    events = await bench.events(logprobs=3, temperature=1.0, seed=1)
    tokens, total = tuple(PROMPT), 0.0
    for event in events:
        expected = logprobs_after(tokens)
        (entry,) = event.logprobs or ()
        assert entry.logprob == pytest.approx(expected[event.token_ids[0]])
        assert [value for _, value in entry.top] == pytest.approx(sorted(expected)[:-4:-1])
        total += entry.logprob
        assert event.cumulative_logprob == pytest.approx(total)
        tokens = (*tokens, event.token_ids[0])


async def test_sequences_are_ranked_without_telling_logprobs(bench: Bench) -> None:
    events = await bench.events(n=2, temperature=1.0)
    assert all(event.logprobs is None and event.cumulative_logprob < 0 for event in events)
    assert all(event.cumulative_logprob == 0 for event in await bench.events())


async def test_one_sequence_can_be_cancelled(bench: Bench) -> None:
    stream = bench.submit(n=2, temperature=1.0, max_tokens=30)
    steps = aiter(stream)
    await anext(steps)
    stream.cancel(1)
    stream.cancel(1)
    events = [event for step in [step async for step in steps] for event in step]
    ends = {event.index: event.finish_reason for event in events if event.finish_reason}
    assert ends == {0: FinishReason.LENGTH, 1: FinishReason.CANCELLED}
    assert bench.core.aborted == ["r-1"]


async def test_a_request_may_be_cancelled_before_it_runs(bench: Bench) -> None:
    stream = bench.submit(n=2, temperature=1.0)
    stream.cancel()
    events = [event for step in [step async for step in stream] for event in step]
    assert [(event.index, event.finish_reason) for event in events] == [
        (0, FinishReason.CANCELLED),
        (1, FinishReason.CANCELLED),
    ]
    await asyncio.sleep(0.01)
    assert not bench.core.running


async def test_a_cancelled_stream_has_all_that_came_before(bench: Bench) -> None:
    stream = bench.submit(max_tokens=100)
    await asyncio.sleep(0.02)
    stream.cancel()
    events = [event for step in [step async for step in stream] for event in step]
    tokens = [token for event in events for token in event.token_ids]
    assert 1 < len(tokens) < 100
    assert tokens == greedy(len(tokens))
    assert [event.finish_reason for event in events][-2:] == [None, FinishReason.CANCELLED]


async def test_an_abort_that_nobody_asked_for_is_a_failure(bench: Bench) -> None:
    bench.core.gives_up = {"r-1"}
    events = await bench.events(n=2, temperature=1.0)
    ends = {event.index: event for event in events if event.finish_reason}
    assert ends[0].finish_reason is FinishReason.LENGTH
    assert ends[1].finish_reason is FinishReason.ERROR
    assert isinstance(ends[1].error, EngineFailure)


async def test_a_dead_engine_tells_everybody_and_takes_nothing_more(bench: Bench) -> None:
    streams = [bench.submit(n=2, temperature=1.0, max_tokens=100), bench.submit(beams=True, n=2, max_tokens=100)]
    await anext(aiter(streams[0]))
    bench.core.die()
    for stream in streams:
        events = [event for step in [step async for step in stream] for event in step]
        ends = [event for event in events if event.finish_reason]
        assert [end.finish_reason for end in ends] == [FinishReason.ERROR] * 2
        assert {str(end.error) for end in ends} == {"The engine stopped working."}
    assert not bench.engine.is_healthy
    with pytest.raises(NotReady):
        bench.submit()
    await bench.engine.close()
    assert bench.core.is_closed


async def test_close_ends_what_runs(bench: Bench) -> None:
    stream = bench.submit(max_tokens=100)
    await anext(aiter(stream))
    await bench.engine.close()
    events = [event for step in [step async for step in stream] for event in step]
    assert events[-1].finish_reason is FinishReason.CANCELLED
    assert bench.core.aborted == ["r-0"]
    assert not bench.engine.is_healthy
    with pytest.raises(NotReady):
        bench.submit()
    await bench.engine.close()


async def test_refusals_come_before_anything_runs(bench: Bench) -> None:
    with pytest.raises(InvalidRequest, match=r"1\.5"):
        bench.submit(temperature=1.5)
    with pytest.raises(InvalidRequest, match="nobody"):
        bench.submit(adapter="nobody")
    for prompt in ([], [-1], [200], [2**31]):
        with pytest.raises(InvalidRequest):
            bench.engine.submit(GenerateRequest(request_id="r", prompt_token_ids=prompt))
    with pytest.raises(PromptTooLong, match="501"):
        bench.engine.submit(GenerateRequest(request_id="r", prompt_token_ids=[1] * 501))
    assert not bench.core.running


async def test_is_not_ready_before_the_start() -> None:
    bench = Bench(FakeCore())
    with pytest.raises(NotReady):
        bench.submit()
    with pytest.raises(NotReady):
        _ = bench.engine.info
    assert not bench.engine.is_healthy
    await bench.engine.close()


async def test_without_vllm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    engine = VllmEngine(Settings(model=ModelSettings(name="m", path=LLAMA / "model")))
    with pytest.raises(ModelLoadError, match=r"mindserve\[vllm\]"):
        await engine.start()


async def test_counters_come_from_the_steps(bench: Bench) -> None:
    await bench.events()
    await bench.events()
    stats = bench.engine.stats()
    assert stats.total_blocks == 100
    assert stats.prefix_queries == 3 * stats.prefix_hits >= 36


async def test_adapters_come_and_go(bench: Bench) -> None:
    await bench.engine.load_adapter("poet", LLAMA / "lora-r4")
    stream = bench.submit(adapter="poet", max_tokens=30)
    await anext(aiter(stream))
    assert [question.adapter.key for _, question in bench.core.asked] == ["1:poet"]
    with pytest.raises(InvalidRequest, match="already"):
        await bench.engine.load_adapter("poet", LLAMA / "lora-r8")
    await bench.engine.unload_adapter("poet")
    with pytest.raises(InvalidRequest, match="poet"):
        bench.submit(adapter="poet")
    assert set(bench.core.loaded) == {"1:poet"}, "something still runs with it"
    assert len([step async for step in stream]) == 29
    await asyncio.sleep(0.01)
    assert not bench.core.loaded
    await bench.engine.load_adapter("poet", LLAMA / "lora-r8")
    assert set(bench.core.loaded) == {"2:poet"}


async def test_an_adapter_that_does_not_load_is_an_error_of_its_own(bench: Bench, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    with pytest.raises(ModelLoadError, match="adapter_config"):
        await bench.engine.load_adapter("bad", bad)
    (bad / "adapter_config.json").write_text('{"r": 8}')
    with pytest.raises(ModelLoadError, match="no such weights"):
        await bench.engine.load_adapter("bad", bad)
    with pytest.raises(InvalidRequest):
        bench.submit(adapter="bad")
    for name in "abc":
        await bench.engine.load_adapter(name, LLAMA / "lora-r4")
    with pytest.raises(InvalidRequest, match="unload one"):
        await bench.engine.load_adapter("d", LLAMA / "lora-r4")


async def test_an_engine_without_adapters_says_how_to_have_them(bench: Bench) -> None:
    bench.core.takes_adapters = False
    with pytest.raises(InvalidRequest, match="enable_lora"):
        await bench.engine.load_adapter("poet", LLAMA / "lora-r4")


def beams_by_hand(width: int, max_tokens: int, ends: frozenset[int]) -> list[tuple[list[int], float]]:
    """The rule written out: (tokens, sum of log-probabilities), best first."""
    running: list[tuple[float, list[int]]] = [(0.0, [])]
    done: list[tuple[float, list[int]]] = []
    for step in range(max_tokens):
        found = [
            (score + float(logprob), [*tokens, i])
            for score, tokens in running
            for i, logprob in enumerate(logprobs_after((*PROMPT, *tokens)))
        ]
        found.sort(key=lambda one: -one[0])
        done += [one for one in found[:width] if step == max_tokens - 1 or one[1][-1] in ends]
        done = sorted(done, key=lambda one: -one[0] / len(one[1]))[:width]
        running = [one for one in found if one[1][-1] not in ends][:width]
        if len(done) == width and running[0][0] / len(running[0][1]) <= done[-1][0] / len(done[-1][1]):
            break
    return [(tokens, score) for score, tokens in done]


@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("has_ends", [False, True])
async def test_beam_search_follows_the_rule(bench: Bench, width: int, has_ends: bool) -> None:
    ends = frozenset({EOS})
    if has_ends:
        free = beams_by_hand(width, 7, ends)
        ends |= {free[0][0][3], free[-1][0][4]}
    events = await bench.events(n=width, beams=True, max_tokens=7, logprobs=2, stop_token_ids=ends)
    expected = beams_by_hand(width, 7, ends)
    assert [list(event.token_ids) for event in events] == [tokens for tokens, _ in expected]
    for event, (tokens, score) in zip(events, expected, strict=True):
        assert event.cumulative_logprob == pytest.approx(score)
        assert [entry.logprob for entry in event.logprobs or ()] == pytest.approx(
            [logprobs_after((*PROMPT, *tokens[:i]))[token] for i, token in enumerate(tokens)]
        )
        assert all(len(entry.top) == 2 for entry in event.logprobs or ())
        assert event.step.batch_size == 1
    if has_ends:
        assert any(event.finish_reason is FinishReason.STOP for event in events)


async def test_a_beam_search_can_be_cancelled(bench: Bench) -> None:
    stream = bench.submit(n=3, beams=True, max_tokens=100)
    await asyncio.sleep(0.01)
    stream.cancel(1)
    stream.cancel()
    events = [event for step in [step async for step in stream] for event in step]
    assert [(event.index, event.finish_reason) for event in events] == [
        (index, FinishReason.CANCELLED) for index in (1, 0, 2)
    ]
    await asyncio.sleep(0.01)
    assert not bench.core.running
