"""Reading an answer to its end, and the laws that every answer is held against."""

from dataclasses import dataclass

from mindserve.engine.base import FinishReason, GenerateRequest, ModelInfo, TokenEvent, TokenLogprob, TokenStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All events of one request, in order."""

    events: list[TokenEvent]

    def tokens(self, index: int = 0) -> list[int]:
        return [token for event in self._of(index) for token in event.token_ids]

    def logprobs(self, index: int = 0) -> list[TokenLogprob]:
        return [entry for event in self._of(index) for entry in event.logprobs or ()]

    def end(self, index: int = 0) -> TokenEvent:
        return self._of(index)[-1]

    def reason(self, index: int = 0) -> FinishReason | None:
        return self.end(index).finish_reason

    def _of(self, index: int) -> list[TokenEvent]:
        return [event for event in self.events if event.index == index]


async def read(stream: TokenStream, request: GenerateRequest, info: ModelInfo) -> Reading:
    """The rest of a stream, held against the laws."""
    steps = [events async for events in stream]
    assert all(steps), "an empty list of events"
    events = [event for step in steps for event in step]
    for index in range(request.n):
        _check_sequence([event for event in events if event.index == index])
    assert {event.index for event in events} == set(range(request.n))
    _check_figures(events, request)
    for event in events:
        _check_event(event, request, info)
    return Reading(events=events)


def _check_sequence(events: list[TokenEvent]) -> None:
    """One terminal event, and nothing behind it."""
    assert [event.finish_reason is not None for event in events] == [False] * (len(events) - 1) + [True]


def _check_figures(events: list[TokenEvent], request: GenerateRequest) -> None:
    times = [event.step.time_s for event in events]
    assert times == sorted(times)
    assert all(event.step.batch_size >= (1 if event.token_ids else 0) for event in events)
    assert all(event.step.queue_wait_us >= 0 for event in events)
    assert all(0 <= event.cached_tokens < len(request.prompt_token_ids) for event in events)


def _check_event(event: TokenEvent, request: GenerateRequest, info: ModelInfo) -> None:
    assert all(0 <= token < info.vocab_size for token in event.token_ids)
    assert event.token_ids or event.finish_reason, "neither tokens nor an end"
    assert (event.finish_reason is FinishReason.ERROR) == (event.error is not None)
    if event.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
        assert event.token_ids, "the last token comes with the end"
    if request.sampling.logprobs is None:
        assert event.logprobs is None
    else:
        assert len(event.logprobs or ()) == len(event.token_ids)
