"""The token stream of one scripted request."""

import time

from msgspec.structs import replace

from mindserve.engine.base import FinishReason, GenerateRequest, StepInfo, TokenEvent, TokenLogprob
from mindserve.engine.queue import StepQueue
from mindserve.engine.scripted.script import Answer
from mindserve.engine.scripted.sequence import ScriptedSequence, invented_logprob
from mindserve.errors import EngineFailure


class ScriptedStream(StepQueue):
    """The token stream of one request."""

    def __init__(self, request: GenerateRequest, answer: Answer, *, sequences: list[ScriptedSequence]) -> None:
        super().__init__(len(sequences))
        self._request = request
        self._answer = answer
        self._live = {sequence.index: sequence for sequence in sequences}
        self._held: list[TokenEvent] = []
        self._last_s = time.perf_counter()
        self.ready_s = self._last_s + answer.first_delay_s
        self.is_hung = False

    @property
    def live(self) -> int:
        """Sequences without a terminal event."""
        return len(self._live)

    def cancel(self, index: int | None = None) -> None:
        """End one sequence, or all."""
        self._end_all(FinishReason.CANCELLED, [i for i in self._live if index is None or i == index])

    def fail(self, error: EngineFailure) -> None:
        """End all with an error."""
        self._end_all(FinishReason.ERROR, list(self._live), error=error)

    def advance(self, *, batch_size: int) -> None:
        """Take part in a step."""
        if self.is_hung:
            return
        step = self._step_info(self._answer.batch_size or batch_size)
        self._last_s = step.time_s
        events: list[TokenEvent] = []
        for sequence in tuple(self._live.values()):
            event = self._advance(sequence, step)
            if event is not None:
                events.append(event)
        self._say(events)

    def _advance(self, sequence: ScriptedSequence, step: StepInfo) -> TokenEvent | None:
        answer = self._answer
        token_ids: list[int] = []
        for _ in range(answer.tokens_per_step):
            if sequence.count == answer.fail_after:
                return self._end(sequence.index, FinishReason.ERROR, step, error=EngineFailure(answer.failure))
            if sequence.count == answer.hang_after:
                self.is_hung = True
                break
            token_ids.append(sequence.next_token())
            if sequence.finish_reason is not None:
                del self._live[sequence.index]
                break
        return self._event(sequence, token_ids, step) if token_ids else None

    def _event(self, sequence: ScriptedSequence, token_ids: list[int], step: StepInfo) -> TokenEvent:
        wanted = self._request.sampling.logprobs
        return TokenEvent(
            index=sequence.index,
            token_ids=tuple(token_ids),
            step=step,
            logprobs=None if wanted is None else tuple(_logprobs(token, wanted) for token in token_ids),
            finish_reason=sequence.finish_reason,
            cached_tokens=self._answer.cached_tokens,
            cumulative_logprob=sequence.cumulative_logprob,
        )

    def _end_all(self, reason: FinishReason, indices: list[int], *, error: EngineFailure | None = None) -> None:
        step = self._step_info(1)
        self._say([self._end(i, reason, step, error=error) for i in indices])

    def _end(
        self, index: int, reason: FinishReason, step: StepInfo, *, error: EngineFailure | None = None
    ) -> TokenEvent:
        del self._live[index]
        return TokenEvent(index=index, token_ids=(), step=step, finish_reason=reason, error=error)

    def _say(self, events: list[TokenEvent]) -> None:
        if self._request.use_beam_search:
            events = self._hold(events)
        if events:
            self.put(events)

    def _hold(self, events: list[TokenEvent]) -> list[TokenEvent]:
        """Beam search: nothing until all hypotheses have ended, then each whole, best first."""
        self._held += events
        if self._live or not events:
            return []
        whole = [_whole([event for event in self._held if event.index == i]) for i in range(self._request.n)]
        whole.sort(key=lambda event: event.cumulative_logprob / max(1, len(event.token_ids)), reverse=True)
        return [replace(event, index=i) for i, event in enumerate(whole)]

    def _step_info(self, batch_size: int) -> StepInfo:
        now = time.perf_counter()
        wait_us = self._answer.queue_wait_us
        if wait_us is None:
            wait_us = round((now - self._last_s) * 1e6)
        return StepInfo(batch_size=batch_size, queue_wait_us=wait_us, time_s=now)


def _whole(events: list[TokenEvent]) -> TokenEvent:
    """All of a hypothesis as one event."""
    logprobs = [entry for event in events for entry in event.logprobs or ()]
    return TokenEvent(
        index=events[-1].index,
        token_ids=tuple(token for event in events for token in event.token_ids),
        step=events[-1].step,
        logprobs=tuple(logprobs) or None,
        finish_reason=events[-1].finish_reason,
        cached_tokens=events[-1].cached_tokens,
        cumulative_logprob=events[-1].cumulative_logprob,
        error=events[-1].error,
    )


def _logprobs(token: int, wanted: int) -> TokenLogprob:
    best = invented_logprob(token)
    return TokenLogprob(logprob=best, top=tuple((max(0, token - i), best - i) for i in range(wanted)))
