"""An engine that plays a script: tests, load tests of the HTTP half, and `modelInstanceType: StandardMock`.

It keeps the engine's promises (masks, stop tokens, length, cancel, one terminal event per sequence, shared steps) and
breaks them where the script says so: refuse, fail or fall silent after some tokens.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from mindserve.engine.base import (
    EngineStats,
    FinishReason,
    GenerateRequest,
    ModelInfo,
    StepInfo,
    TokenEvent,
    TokenLogprob,
    TokenMask,
)
from mindserve.errors import ConfigError, EngineFailure, InvalidRequest, NotReady, PromptTooLong


class Codec(Protocol):
    """What a script needs of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of the tokens."""
        ...


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the engine does with a request. Counts are tokens per sequence."""

    match: str | None = None
    """Only for prompts that contain this text; answers without it take turns."""
    text: str = "Hello! How can I help you today?"
    token_ids: tuple[int, ...] | None = None
    """Instead of `text`; an end token follows, as it does after a text."""
    sequences: tuple[str, ...] = ()
    """Texts of sequence 0, 1, ... where they differ (again from the first when there are more)."""
    tokens_per_step: int = 1
    """More than one: as an engine with speculation answers."""
    first_delay_s: float = 0.0
    cached_tokens: int = 0
    batch_size: int | None = None
    """Figure to report instead of the true one."""
    queue_wait_us: int | None = None
    refuse: str | None = None
    """`submit` raises NotReady with this text."""
    fail_after: int | None = None
    """An error event comes after this many tokens."""
    failure: str = "The script ends here."
    hang_after: int | None = None
    """Nothing comes after this many tokens, until the request is cancelled."""


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Answers and the model that the engine pretends to be."""

    answers: tuple[Answer, ...] = (Answer(),)
    step_interval_s: float = 0.0
    """Time between steps: the token rate of every request is one per interval (0: as fast as possible)."""
    model_type: str = "scripted"
    max_context_len: int = 32768


def load_script(path: Path) -> Script:
    """Read a script from a JSON file. Raises ConfigError."""
    try:
        script = msgspec.json.decode(path.read_bytes(), type=Script)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"The script {path.name} cannot be used: {error}", param="script") from error
    if not any(answer.match is None for answer in script.answers):
        raise ConfigError("A script needs an answer without `match`, for prompts that match none.", param="answers")
    return script


class ScriptedEngine:
    """Plays a script to every request; all running requests share the steps of one task."""

    def __init__(self, script: Script, *, codec: Codec, eos_token_id: int) -> None:
        self._script = script
        self._codec = codec
        self._turns = [answer for answer in script.answers if answer.match is None]
        self._turn = 0
        self._is_closed = False
        self._adapters: set[str] = set()
        self._running: list[ScriptedStream] = []
        self._has_work = asyncio.Event()
        self._driver: asyncio.Task[None] | None = None
        self.requests: list[GenerateRequest] = []
        """The last requests submitted, for tests to look at (at most 1000)."""
        self.violations: list[tuple[str, int, int]] = []
        """Request id, sequence and token of every scripted token that a mask forbade (at most 1000)."""
        self._closers = [token for text in ("}", "]", '"') for token in codec.encode(text)[:1]]
        self.info = ModelInfo(
            model_type=script.model_type,
            vocab_size=codec.vocab_size,
            max_context_len=script.max_context_len,
            eos_token_ids=frozenset({eos_token_id}),
        )

    @property
    def is_healthy(self) -> bool:
        """Until it is closed."""
        return not self._is_closed

    async def start(self) -> None:
        """Begin to step."""
        self._driver = asyncio.create_task(self._drive())

    def submit(self, request: GenerateRequest) -> "ScriptedStream":
        """Queue a request. Raises what the script says, NotReady after `close`, InvalidRequest, PromptTooLong."""
        answer = self._answer_to(request)
        if self._is_closed or answer.refuse:
            raise NotReady(answer.refuse or "The engine has been stopped")
        if len(request.prompt_token_ids) > self.info.max_context_len:
            raise PromptTooLong("The prompt is longer than the context.", param="messages")
        if request.adapter is not None and request.adapter not in self._adapters:
            raise InvalidRequest(f"There is no adapter {request.adapter}.", param="model")
        self.requests = [*self.requests[-999:], request]
        stream = ScriptedStream(request, answer, sequences=self._sequences(request, answer))
        self._running.append(stream)
        self._has_work.set()
        return stream

    def stats(self) -> EngineStats:
        """How many sequences are live."""
        return EngineStats(running=sum(stream.live for stream in self._running))

    async def load_adapter(self, name: str, path: Path) -> None:
        """Accept the name; the script does not change."""
        self._adapters.add(name)

    async def unload_adapter(self, name: str) -> None:
        """Forget the name."""
        self._adapters.discard(name)

    async def close(self) -> None:
        """Cancel what runs."""
        self._is_closed = True
        if self._driver is not None:
            self._driver.cancel()
        for stream in self._running:
            stream.cancel()
        self._running = []

    def _answer_to(self, request: GenerateRequest) -> Answer:
        prompt = self._codec.decode(request.prompt_token_ids, skip_special_tokens=False)
        for answer in self._script.answers:
            if answer.match is not None and answer.match in prompt:
                return answer
        answer = self._turns[self._turn % len(self._turns)]
        self._turn += 1
        return answer

    def _sequences(self, request: GenerateRequest, answer: Answer) -> list["ScriptedSequence"]:
        eos = min(self.info.eos_token_ids)
        texts = answer.sequences or [answer.text]
        token_ids = [answer.token_ids] if answer.token_ids is not None else [self._codec.encode(t) for t in texts]
        room = self.info.max_context_len - len(request.prompt_token_ids) + 1
        return [
            ScriptedSequence(
                [*token_ids[index % len(token_ids)], eos],
                request=request,
                index=index,
                max_tokens=max(1, min(request.sampling.max_tokens, room)),
                choose=self._choose,
            )
            for index in range(request.n)
        ]

    def _choose(self, sequence: "ScriptedSequence", mask: TokenMask, wanted: int) -> int:
        """The wanted token if the mask allows it, else an end, else what closes a JSON value, else the first.

        A mask that allows nothing has come to a dead end, which ends the sequence.
        """
        bits = mask.allowed()
        if bits is None or _is_set(bits, wanted):
            return wanted
        self.violations = [*self.violations[-999:], (sequence.request.request_id, sequence.index, wanted)]
        for token in (*self.info.eos_token_ids, *self._closers):
            if _is_set(bits, token):
                return token
        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
        return int(allowed[0]) if len(allowed) else min(self.info.eos_token_ids)

    async def _drive(self) -> None:
        while True:
            await self._has_work.wait()
            await asyncio.sleep(self._script.step_interval_s)
            now = time.perf_counter()
            due = [stream for stream in self._running if stream.ready_s <= now]
            for stream in due:
                stream.advance(batch_size=len(due))
            self._running = [stream for stream in self._running if stream.live]
            if not any(not stream.is_hung for stream in self._running):
                self._has_work.clear()
            elif not due:
                await asyncio.sleep(0.001)


def _is_set(bits: np.ndarray[tuple[int, ...], np.dtype[np.uint32]], token: int) -> bool:
    return token // 32 < len(bits) and bool(int(bits[token // 32]) >> (token % 32) & 1)


class ScriptedSequence:
    """One sequence at its place in the script; with `ignore_eos` the script starts again behind its end."""

    def __init__(
        self,
        script: list[int],
        *,
        request: GenerateRequest,
        index: int,
        max_tokens: int,
        choose: Callable[["ScriptedSequence", TokenMask, int], int],
    ) -> None:
        self.request = request
        self.index = index
        self._script = script
        self._place = 0
        self._max_tokens = max_tokens
        self._mask = request.mask.fork() if request.mask else None
        self._choose = choose
        self.count = 0
        self.cumulative_logprob = 0.0
        self.finish_reason: FinishReason | None = None

    def next_token(self) -> int:
        """Generate one token; `finish_reason` tells whether it was the last."""
        wanted = self._script[self._place % len(self._script)]
        token = self._choose(self, self._mask, wanted) if self._mask else wanted
        if token == wanted:
            self._place += 1
        if self._mask:
            self._mask.advance(token)
        self.count += 1
        self.cumulative_logprob += invented_logprob(token)
        self.finish_reason = self._finish_after(token)
        return token

    def _finish_after(self, token: int) -> FinishReason | None:
        sampling = self.request.sampling
        if self.count >= self._max_tokens:
            return FinishReason.LENGTH
        is_end = token == self._script[-1] and not sampling.ignore_eos
        return FinishReason.STOP if is_end or token in sampling.stop_token_ids else None


def invented_logprob(token: int) -> float:
    """The log-probability that the engine reports for a token wherever it comes."""
    return -0.125 - (token % 8) / 8


class ScriptedStream:
    """The token stream of one request."""

    def __init__(self, request: GenerateRequest, answer: Answer, *, sequences: list[ScriptedSequence]) -> None:
        self._request = request
        self._answer = answer
        self._live = {sequence.index: sequence for sequence in sequences}
        self._pending: list[list[TokenEvent]] = []
        self._held: list[TokenEvent] = []
        self._waiter: asyncio.Future[None] | None = None
        self._arrived_s = self._last_s = time.perf_counter()
        self.ready_s = self._arrived_s + answer.first_delay_s
        self.is_hung = False

    @property
    def live(self) -> int:
        """Sequences without a terminal event."""
        return len(self._live)

    async def __aiter__(self) -> AsyncIterator[list[TokenEvent]]:
        while self._pending or self._live:
            if not self._pending:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            pending, self._pending = self._pending, []
            for step in pending:
                yield step

    def cancel(self, index: int | None = None) -> None:
        """End one sequence, or all."""
        step = self._step_info(1)
        indices = [i for i in self._live if index is None or i == index]
        self._push([self._end(i, FinishReason.CANCELLED, step) for i in indices])

    def advance(self, *, batch_size: int) -> None:
        """Take part in a step."""
        if self.is_hung:
            return
        step = self._step_info(self._answer.batch_size or batch_size)
        self._last_s = step.time_s
        events = [self._advance(sequence, step) for sequence in list(self._live.values())]
        if self._request.use_beam_search:
            events = self._hold(events)
        self._push([event for event in events if event is not None])

    def _advance(self, sequence: ScriptedSequence, step: StepInfo) -> TokenEvent | None:
        token_ids: list[int] = []
        while len(token_ids) < self._answer.tokens_per_step and sequence.finish_reason is None:
            if sequence.count == self._answer.fail_after:
                return self._end(sequence.index, FinishReason.ERROR, step)
            if sequence.count == self._answer.hang_after:
                self.is_hung = True
                break
            token_ids.append(sequence.next_token())
        if sequence.finish_reason is not None:
            del self._live[sequence.index]
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

    def _end(self, index: int, reason: FinishReason, step: StepInfo) -> TokenEvent:
        del self._live[index]
        error = EngineFailure(self._answer.failure) if reason is FinishReason.ERROR else None
        return TokenEvent(index=index, token_ids=(), step=step, finish_reason=reason, error=error)

    def _hold(self, events: list[TokenEvent | None]) -> list[TokenEvent | None]:
        """Beam search: nothing until all hypotheses have ended, then each whole, best first."""
        self._held += [event for event in events if event is not None]
        if self._live:
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

    def _push(self, events: list[TokenEvent]) -> None:
        if not events:
            return
        self._pending.append(events)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


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
