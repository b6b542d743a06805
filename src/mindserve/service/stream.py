"""One running request: the engine's token events become output events, and every choice ends exactly once."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from mindserve.engine.base import FinishReason, TokenEvent, TokenStream
from mindserve.errors import EngineFailure, MindserveError
from mindserve.output.assembler import ChoiceAssembler
from mindserve.output.events import ChoiceUsage, LogprobEntry, OutputEvent
from mindserve.service.observer import Outcome, RequestTimeline
from mindserve.service.timing import StepLog
from mindserve.service.watchdog import Watchdog


@dataclass(slots=True, kw_only=True)
class Choice:
    """One sequence and what is known of it so far."""

    assembler: ChoiceAssembler
    tokens: int = 0
    cumulative_logprob: float = 0.0

    def feed(self, event: TokenEvent) -> list[OutputEvent]:
        """What an event adds, up to the choice's end: behind a stop string nothing counts."""
        self.cumulative_logprob = event.cumulative_logprob
        outputs: list[OutputEvent] = []
        last = len(event.token_ids) - 1
        for position, token_id in enumerate(event.token_ids):
            finish = event.finish_reason if position == last else None
            logprob = event.logprobs[position] if event.logprobs else None
            self.tokens += 1
            outputs.append(self.assembler.feed(token_id, logprob=logprob, finish=finish))
            if self.assembler.is_finished:
                return outputs
        if event.finish_reason:
            outputs.append(self.assembler.end(event.finish_reason))
        return outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A submitted request with everything that its stream needs."""

    tokens: TokenStream
    choices: tuple[Choice, ...]
    watchdog: Watchdog
    timeline: RequestTimeline
    merges_hypotheses: bool = False
    """Beam search: a hypothesis is one event (contract: pseudo stream)."""


class ChatStream:
    """Lists of OutputEvents, one list per engine step, indices ascending within a step.

    Every choice ends with one event that carries `finish_reason` and `usage`; iteration ends after the last of them.
    Raises EngineFailure or GenerationTimeout from iteration; then that is the end of all choices. Whoever iterates
    calls `close` at the end, however it comes.
    """

    def __init__(self, generation: Generation, *, on_close: Callable[["ChatStream"], None]) -> None:
        self.timeline = generation.timeline
        self._generation = generation
        self._steps = aiter(generation.tokens)
        self._log = StepLog(generation.timeline.submitted_s or generation.timeline.arrived_s)
        self._live = len(generation.choices)
        self._on_close: Callable[[ChatStream], None] | None = on_close
        self._was_stopped = False

    def __aiter__(self) -> "ChatStream":
        return self

    async def __anext__(self) -> list[OutputEvent]:
        while self._live and self._on_close:
            try:
                with self._generation.watchdog:
                    step = await anext(self._steps)
                outputs = self._take(step)
            except StopAsyncIteration:
                self._close(Outcome.FAILED)
                raise EngineFailure("Failed to get engine response.") from None
            except MindserveError:
                self._close(Outcome.FAILED)
                raise
            if self._live == 0:
                self._close(Outcome.STOPPED if self._was_stopped else Outcome.FINISHED)
            if outputs:
                return outputs
        raise StopAsyncIteration

    def stop(self) -> None:
        """End all choices with what they have (`finish_reason` stop); the iteration goes on to their last events."""
        self._was_stopped = True
        self._generation.tokens.cancel()

    def close(self) -> None:
        """Cancel what still runs and free the request's place. Idempotent."""
        self._close(Outcome.ABANDONED)

    def _close(self, outcome: Outcome) -> None:
        if self._on_close is None:
            return
        on_close, self._on_close = self._on_close, None
        self._generation.watchdog.cancel()
        if self._live:
            self._generation.tokens.cancel()
        self.timeline.outcome = outcome
        self.timeline.completion_tokens = sum(choice.tokens for choice in self._generation.choices)
        self.timeline.decode_ms = tuple(self._log.decode_ms)
        on_close(self)

    def _take(self, step: list[TokenEvent]) -> list[OutputEvent]:
        outputs: list[OutputEvent] = []
        speaker, longest, live = None, 0, self._live
        for event in sorted(step, key=_index) if len(step) > 1 else step:
            choice = self._generation.choices[event.index]
            outputs += self._feed(choice, event)
            if event.token_ids:
                speaker, longest = event, max(longest, choice.tokens)
        if speaker is not None:
            self._record(speaker, longest=longest)
        if self._live < live:
            return [self._with_usage(output) if output.finish_reason else output for output in outputs]
        return outputs

    def _feed(self, choice: Choice, event: TokenEvent) -> list[OutputEvent]:
        if event.finish_reason is FinishReason.ERROR:
            raise event.error or EngineFailure("Failed to get engine response.")
        if choice.assembler.is_finished:
            return []
        outputs = choice.feed(event)
        if choice.assembler.is_finished:
            self._note_end(event)
        return [merged(outputs)] if self._generation.merges_hypotheses and len(outputs) > 1 else outputs

    def _note_end(self, event: TokenEvent) -> None:
        self._live -= 1
        self._was_stopped |= event.finish_reason is FinishReason.CANCELLED
        if event.finish_reason is None:
            self._generation.tokens.cancel(event.index)

    def _record(self, event: TokenEvent, *, longest: int) -> None:
        """`event` brought tokens in the step; `longest` is the longest of all sequences that did."""
        self._log.record(event.step, longest=longest)
        if self.timeline.first_token_s is None:
            self.timeline.first_token_s = event.step.time_s
            self.timeline.cached_tokens = event.cached_tokens

    def _with_usage(self, output: OutputEvent) -> OutputEvent:
        choice = self._generation.choices[output.index]
        usage = ChoiceUsage(
            prompt_tokens=self.timeline.prompt_tokens,
            cached_tokens=self.timeline.cached_tokens,
            completion_tokens=choice.tokens,
            reasoning_tokens=choice.assembler.reasoning_tokens,
            batch_sizes=tuple(self._log.batch_sizes),
            queue_waits_us=tuple(self._log.queue_waits_us),
            prefill_ms=self._log.prefill_ms,
            decode_ms=tuple(self._log.decode_ms),
            cumulative_logprob=choice.cumulative_logprob,
        )
        return replace(output, usage=usage)


def _index(event: TokenEvent) -> int:
    return event.index


def merged(outputs: list[OutputEvent]) -> OutputEvent:
    """Consecutive events of one choice as one event."""
    last = outputs[-1]
    thoughts = [output.reasoning for output in outputs if output.reasoning is not None]
    return replace(
        last,
        content="".join(output.content for output in outputs),
        reasoning="".join(thoughts) if thoughts else None,
        tool_calls=tuple(delta for output in outputs for delta in output.tool_calls),
        logprobs=_joined(output.logprobs for output in outputs),
    )


def _joined(parts: Iterable[tuple[LogprobEntry, ...] | None]) -> tuple[LogprobEntry, ...] | None:
    known = [part for part in parts if part is not None]
    return tuple(entry for part in known for entry in part) if known else None
