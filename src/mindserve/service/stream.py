"""One running request: the engine's token events become output events, and every choice ends exactly once."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

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
    is_over: bool = False
    """Its terminal event is out."""


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
            step = await self._next_step()
            outputs = self._take(step) if step else []
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
        self.timeline.decode_ms = tuple(self._log.decode_ms)
        on_close(self)

    async def _next_step(self) -> list[TokenEvent]:
        try:
            return await self._generation.watchdog.wait(anext(self._steps))
        except StopAsyncIteration:
            self._close(Outcome.FAILED)
            raise EngineFailure("Failed to get engine response.") from None
        except MindserveError:
            self._close(Outcome.FAILED)
            raise

    def _take(self, step: list[TokenEvent]) -> list[OutputEvent]:
        outputs: list[OutputEvent] = []
        for event in sorted(step, key=lambda event: event.index) if len(step) > 1 else step:
            outputs += self._feed(event)
        self._record(next((event for event in step if event.token_ids), step[0]))
        return [self._with_usage(output) if output.finish_reason else output for output in outputs]

    def _feed(self, event: TokenEvent) -> list[OutputEvent]:
        if event.finish_reason is FinishReason.ERROR:
            self._close(Outcome.FAILED)
            raise event.error or EngineFailure("Failed to get engine response.")
        choice = self._generation.choices[event.index]
        if choice.is_over:
            return []
        choice.cumulative_logprob = event.cumulative_logprob
        outputs = self._feed_tokens(choice, event)
        if event.finish_reason and not choice.is_over:
            self._was_stopped |= event.finish_reason is FinishReason.CANCELLED
            outputs.append(self._noted(choice, choice.assembler.end(event.finish_reason)))
        return [merged(outputs)] if self._generation.merges_hypotheses and len(outputs) > 1 else outputs

    def _feed_tokens(self, choice: Choice, event: TokenEvent) -> list[OutputEvent]:
        """Feed tokens up to the choice's end; behind a stop string nothing counts and the sequence is cancelled."""
        outputs: list[OutputEvent] = []
        last = len(event.token_ids) - 1
        for position, token_id in enumerate(event.token_ids):
            finish = event.finish_reason if position == last else None
            logprob = event.logprobs[position] if event.logprobs else None
            choice.tokens += 1
            outputs.append(self._noted(choice, choice.assembler.feed(token_id, logprob=logprob, finish=finish)))
            if choice.is_over:
                if finish is None:
                    self._generation.tokens.cancel(event.index)
                break
        return outputs

    def _noted(self, choice: Choice, output: OutputEvent) -> OutputEvent:
        if output.finish_reason:
            choice.is_over = True
            self._live -= 1
        return output

    def _record(self, event: TokenEvent) -> None:
        self._log.record(event.step, longest=max(choice.tokens for choice in self._generation.choices))
        timeline = self.timeline
        if timeline.first_token_s is None and self._log.batch_sizes:
            timeline.first_token_s = event.step.time_s
            timeline.cached_tokens = event.cached_tokens
        timeline.completion_tokens = sum(choice.tokens for choice in self._generation.choices)

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
