"""Events, usage and ends of one request."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindserve.engine.scripted import Answer
from mindserve.errors import EngineFailure, GenerationTimeout
from mindserve.output.events import OutputEvent
from mindserve.service import Outcome
from mindserve.settings.values import Limits

from .house import ends, house, said


async def test_every_token_gives_an_event_and_the_last_one_the_usage() -> None:
    async with house(Answer(text="abc", cached_tokens=1, batch_size=5, queue_wait_us=7)) as at:
        steps = await at.steps("hello")
        events = [event for step in steps for event in step]
        assert [len(step) for step in steps] == [1, 1, 1, 1]
        assert [event.content for event in events] == ["a", "b", "c", ""]
        assert ends(events) == [(0, "stop")]
        assert [event.usage is None for event in events] == [True, True, True, False]
        usage = events[-1].usage
        assert usage is not None
        assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (5, 1, 4)
        assert usage.reasoning_tokens is None
        assert (usage.batch_sizes, usage.queue_waits_us) == ((5, 5, 5, 5), (7, 7, 7, 7))
        assert len(usage.decode_ms) == 3


async def test_several_tokens_in_a_step_are_several_events_of_one_list() -> None:
    async with house(Answer(text="abcd", tokens_per_step=3, batch_size=2, queue_wait_us=9)) as at:
        steps = await at.steps()
        assert [[event.content for event in step] for step in steps] == [["a", "b", "c"], ["d", ""]]
        usage = steps[-1][-1].usage
        assert usage is not None
        assert usage.batch_sizes == (2,) * 5
        assert usage.queue_waits_us == (9, 0, 0, 9, 0)
        assert len(usage.decode_ms) == 4


async def test_a_characters_bytes_are_held_back_but_still_events() -> None:
    async with house(Answer(text="é!")) as at:
        assert [event.content for event in await at.events()] == ["", "é", "!", ""]


async def test_sequences_end_each_with_their_own_count_and_the_arrays_so_far() -> None:
    async with house(Answer(sequences=("a", "bcd"))) as at:
        steps = await at.steps(n=2)
        assert [[event.index for event in step] for step in steps] == [[0, 1], [0, 1], [1], [1]]
        events = [event for step in steps for event in step]
        assert ends(events) == [(0, "stop"), (1, "stop")]
        usages = {event.index: event.usage for event in events if event.usage}
        assert [(usages[i].completion_tokens, len(usages[i].batch_sizes)) for i in (0, 1)] == [(2, 2), (4, 4)]
        assert {usages[i].prompt_tokens for i in (0, 1)} == {2}


async def test_arrays_have_one_entry_per_token_of_the_longest_sequence() -> None:
    async with house(Answer(sequences=("abcdefgh", "xy"), tokens_per_step=2)) as at:
        usages = [event.usage for event in await at.events(n=2) if event.usage]
        assert [usage.completion_tokens for usage in usages] == [3, 9]
        assert [len(usage.batch_sizes) for usage in usages] == [4, 9]
        assert [len(usage.decode_ms) for usage in usages] == [3, 8]


async def test_a_stop_string_counts_its_own_tokens_and_nothing_behind_it() -> None:
    async with house(Answer(text="abSTOPxyz", tokens_per_step=4)) as at:
        events = await at.events(stop=("STOP",), logprobs=0)
        assert (said(events), ends(events)) == ("ab", [(0, "stop")])
        usage = events[-1].usage
        assert usage is not None
        assert usage.completion_tokens == len("abSTOP") == len(usage.batch_sizes)
        assert sum(len(event.logprobs or ()) for event in events) == len("abSTOP")
        assert at.engine.stats().running == 0


async def test_a_stop_string_ends_one_choice_and_the_others_go_on() -> None:
    async with house(Answer(sequences=("a#bcdefgh", "0123456789")), step_interval_s=0.001) as at:
        events = await at.events(n=2, stop=("#",))
        assert [said(events, index) for index in (0, 1)] == ["a", "0123456789"]
        assert ends(events) == [(0, "stop"), (1, "stop")]


async def test_length_ends_at_the_smallest_cap() -> None:
    async with house(Answer(text="a" * 100), max_iter_times=20, max_seq_len=40, max_input_len=39) as at:
        for prompt, wanted, expected in [("hi", 5, 5), ("hi", None, 20), ("hi", 90, 20), ("x" * 35, 90, 5)]:
            events = await at.events(prompt, max_tokens=wanted)
            assert ends(events) == [(0, "length")]
            assert len(events) == expected


async def test_a_beam_hypothesis_is_one_event() -> None:
    async with house(Answer(sequences=("gg", "hhh"))) as at:
        (step,) = await at.steps(n=2, use_beam_search=True, logprobs=1)
        assert [(event.index, event.content, event.finish_reason) for event in step] == [
            (0, "hhh", "stop"),
            (1, "gg", "stop"),
        ]
        assert [event.usage and event.usage.completion_tokens for event in step] == [4, 3]
        assert [len(event.logprobs or ()) for event in step] == [4, 3]
        assert [len(event.usage.batch_sizes) for event in step if event.usage] == [4, 4]


async def test_best_of_keeps_what_ranks_it() -> None:
    async with house(Answer(sequences=("gg", "hh"))) as at:
        events = await at.events(best_of=2)
        usages = [event.usage for event in events if event.usage]
        assert usages[0].cumulative_logprob < usages[1].cumulative_logprob < 0


async def test_an_engine_failure_is_raised_and_is_the_end() -> None:
    async with house(Answer(text="abcd", fail_after=2, failure="boom")) as at:
        stream = await at.open(n=2)
        seen: list[OutputEvent] = []
        with pytest.raises(EngineFailure, match="boom"):
            async for step in stream:
                seen += step
        assert said(seen) == "ab"
        assert ends(seen) == []
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert at.service.admission.running == 0
        assert [timeline.outcome for timeline in at.records.finished] == [Outcome.FAILED]


async def test_a_silent_engine_is_a_token_timeout() -> None:
    async with house(Answer(text="abcd", hang_after=1), limits=Limits(token_timeout_s=0.05)) as at:
        stream = await at.open()
        assert said(await anext(stream)) == "a"
        with pytest.raises(GenerationTimeout) as error:
            await anext(stream)
        assert error.value.message == "Engine callback timeout: server tokenTimeout"
        assert at.engine.stats().running == 0
        assert at.service.admission.running == 0


async def test_a_timeout_of_the_iteration_does_not_poison_the_task() -> None:
    async with house(Answer(hang_after=0), limits=Limits(token_timeout_s=0.02)) as at:

        async def consume() -> str:
            with pytest.raises(GenerationTimeout):
                await anext(await at.open())
            await asyncio.sleep(0)
            return "alive"

        task = asyncio.create_task(consume())
        assert await task == "alive"
        assert not task.cancelled()


async def test_a_request_that_lives_too_long_is_an_e2e_timeout() -> None:
    limits = Limits(token_timeout_s=10, e2e_timeout_s=0.05)
    async with house(Answer(text="a" * 1000), limits=limits, step_interval_s=0.005) as at:
        with pytest.raises(GenerationTimeout, match="Engine callback timeout: server e2eTimeout"):
            await at.events(max_tokens=1000)
        assert at.engine.stats().running == 0


async def test_a_slow_client_is_no_token_timeout() -> None:
    async with house(Answer(text="abc"), limits=Limits(token_timeout_s=0.05)) as at:
        stream = await at.open()
        first = await anext(stream)
        await asyncio.sleep(0.15)
        rest = [event async for step in stream for event in step]
        assert said(first + rest) == "abc"


async def test_close_cancels_and_may_be_repeated() -> None:
    async with house(Answer(text="abc", hang_after=1)) as at:
        stream = await at.open(n=2)
        await anext(stream)
        stream.close()
        stream.close()
        assert at.engine.stats().running == 0
        assert at.service.admission.running == 0
        assert [step async for step in stream] == []
        assert [timeline.outcome for timeline in at.records.finished] == [Outcome.ABANDONED]


async def test_a_cancelled_reader_stays_cancelled() -> None:
    async with house(Answer(hang_after=0)) as at:
        stream = await at.open()
        task = asyncio.create_task(anext(stream))  # pyright: ignore[reportArgumentType]
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stream.close()
        assert at.engine.stats().running == 0


@given(
    texts=st.lists(st.text(alphabet="ab#é", max_size=6), min_size=1, max_size=3),
    tokens_per_step=st.integers(1, 4),
    max_tokens=st.integers(1, 8),
    stop=st.sampled_from([(), ("#",), ("a#", "b")]),
)
def test_whatever_comes_each_choice_ends_once_and_counts_add_up(
    texts: list[str], tokens_per_step: int, max_tokens: int, stop: tuple[str, ...]
) -> None:
    async def run() -> None:
        answer = Answer(sequences=tuple(texts), tokens_per_step=tokens_per_step)
        async with house(answer) as at:
            steps = await at.steps(n=len(texts), max_tokens=max_tokens, stop=stop, logprobs=0)
        events = [event for step in steps for event in step]
        assert sorted(index for index, _ in ends(events)) == list(range(len(texts)))
        longest = 0
        for index in range(len(texts)):
            own = [event for event in events if event.index == index]
            assert [event.finish_reason is not None for event in own] == [False] * (len(own) - 1) + [True]
            usage = own[-1].usage
            assert usage is not None
            assert usage.completion_tokens == len(own) == sum(len(event.logprobs or ()) for event in own)
            assert len(usage.batch_sizes) == len(usage.queue_waits_us) == len(usage.decode_ms) + 1
            longest = max(longest, len(own))
        last = [event.usage for event in events if event.usage][-1]
        assert len(last.batch_sizes) == longest
        for step in steps:
            assert [event.index for event in step] == sorted(event.index for event in step)

    asyncio.run(run())
