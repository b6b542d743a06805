"""The engine itself: answers every request by the script, all running requests in the steps of one task."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from mindserve.engine.base import EngineStats, GenerateRequest, ModelInfo, TokenMask
from mindserve.engine.checks import no_adapter
from mindserve.engine.scripted.script import Answer, Script
from mindserve.engine.scripted.sequence import ScriptedSequence
from mindserve.engine.scripted.stream import ScriptedStream
from mindserve.errors import EngineFailure, InvalidRequest, NotReady, PromptTooLong

MEMORY = 1000
"""Requests and violations that are remembered for whoever looks."""


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


class ScriptedEngine:
    """Plays a script to every request; all running requests share the steps of one task."""

    def __init__(self, script: Script, *, codec: Codec, eos_token_id: int) -> None:
        self._script = script
        self._codec = codec
        self._token_ids: dict[str, tuple[int, ...]] = {}
        """Of the answers' texts so far."""
        self._turns = [answer for answer in script.answers if answer.match is None]
        self._turn = 0
        self._is_closed = False
        self._adapters: set[str] = set()
        self._running: list[ScriptedStream] = []
        self._has_work = asyncio.Event()
        self._driver: asyncio.Task[None] | None = None
        self.requests: deque[GenerateRequest] = deque(maxlen=MEMORY)
        """The last requests submitted."""
        self.violations: deque[tuple[str, int, int]] = deque(maxlen=MEMORY)
        """Request id, sequence and token of the last scripted tokens that a mask forbade."""
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

    def submit(self, request: GenerateRequest) -> ScriptedStream:
        """Queue a request. Raises what the script says, NotReady after `close`, InvalidRequest, PromptTooLong."""
        self._refuse(request)
        answer = self._answer_to(request)
        if answer.refuse:
            raise NotReady(answer.refuse)
        self.requests.append(request)
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

    def _refuse(self, request: GenerateRequest) -> None:
        """What no engine answers."""
        if self._driver is None or self._is_closed:
            raise NotReady("The engine has been stopped" if self._is_closed else "The engine is not running.")
        length = len(request.prompt_token_ids)
        if length > self.info.max_context_len:
            text = f"The prompt is longer than the context ({length} tokens, {self.info.max_context_len} at most)."
            raise PromptTooLong(text, param="messages")
        if not length or not all(0 <= token < self.info.vocab_size for token in request.prompt_token_ids):
            raise InvalidRequest("The prompt holds no tokens, or unknown ones.", param="messages")
        if request.adapter is not None and request.adapter not in self._adapters:
            raise no_adapter(request.adapter, param="model")

    def _answer_to(self, request: GenerateRequest) -> Answer:
        if len(self._turns) < len(self._script.answers):
            prompt = self._codec.decode(request.prompt_token_ids, skip_special_tokens=False)
            for answer in self._script.answers:
                if answer.match is not None and answer.match in prompt:
                    return answer
        answer = self._turns[self._turn % len(self._turns)]
        self._turn += 1
        return answer

    def _sequences(self, request: GenerateRequest, answer: Answer) -> list[ScriptedSequence]:
        scripts = self._scripts(answer)
        room = self.info.max_context_len - len(request.prompt_token_ids) + 1
        return [
            ScriptedSequence(
                scripts[index % len(scripts)],
                request=request,
                index=index,
                max_tokens=max(1, min(request.sampling.max_tokens, room)),
                choose=self._choose,
            )
            for index in range(request.n)
        ]

    def _scripts(self, answer: Answer) -> list[tuple[int, ...]]:
        """The sequences' tokens, ends included."""
        eos = min(self.info.eos_token_ids)
        if answer.token_ids is not None:
            return [(*answer.token_ids, eos)]
        for text in answer.sequences or (answer.text,):
            if text not in self._token_ids:
                self._token_ids[text] = (*self._codec.encode(text), eos)
        return [self._token_ids[text] for text in answer.sequences or (answer.text,)]

    def _choose(self, sequence: ScriptedSequence, mask: TokenMask, wanted: int) -> int:
        """The wanted token if the mask allows it, else an end, else what closes a JSON value, else the first.

        A mask that allows nothing has come to a dead end, which ends the sequence.
        """
        bits = mask.allowed()
        if bits is None or _is_set(bits, wanted):
            return wanted
        self.violations.append((sequence.request.request_id, sequence.index, wanted))
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
                _advance(stream, batch_size=len(due))
            self._running = [stream for stream in self._running if stream.live]
            if not any(not stream.is_hung for stream in self._running):
                self._has_work.clear()
            elif not due:
                await asyncio.sleep(0.001)


def _advance(stream: ScriptedStream, *, batch_size: int) -> None:
    """A mask that breaks ends its own request, not everybody's."""
    try:
        stream.advance(batch_size=batch_size)
    except Exception as error:
        stream.fail(EngineFailure(f"The step failed: {type(error).__name__}"))


def _is_set(bits: np.ndarray[tuple[int, ...], np.dtype[np.uint32]], token: int) -> bool:
    return token // 32 < len(bits) and bool(int(bits[token // 32]) >> (token % 32) & 1)
