"""One sequence: what vLLM says about it becomes tokens, with exactly one end."""

import asyncio
import math
from collections.abc import Mapping

import msgspec

from mindserve.engine.base import LOGPROB_OF_EXCLUDED, FinishReason, SamplingParams, TokenLogprob
from mindserve.engine.vllm.border import Completion, Logprob, Output
from mindserve.engine.vllm.sampling import Frame
from mindserve.errors import EngineFailure, MindserveError

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes one event once its step is known; without a `token_id` only an end."""

    token_id: int | None = None
    logprob: TokenLogprob | None = None
    finish_reason: FinishReason | None = None
    cumulative_logprob: float = 0.0
    error: MindserveError | None = None


class Sequence:
    """Counts and sums; lives on the event loop."""

    def __init__(self, index: int, sampling: SamplingParams, frame: Frame) -> None:
        self.index = index
        self.is_over = False
        """Whether its end is known, be it told already or not."""
        self.cached_tokens = 0
        self.queue_wait_us: int | None = None
        """Known with the first token."""
        self.task: asyncio.Task[None] | None = None
        """Reads it."""
        self._shown = sampling.logprobs
        self._frame = frame
        self._generated = 0
        self._cumulative = 0.0

    def read(self, output: Output) -> list[Token]:
        """The tokens of one message, up to the sequence's end."""
        if self.queue_wait_us is None:
            self.read_start(output)
        completion = output.outputs[0]
        tokens: list[Token] = []
        last = len(completion.token_ids) - 1
        for position, token_id in enumerate(completion.token_ids):
            if self.is_over:
                break
            logprobs = completion.logprobs[position] if completion.logprobs else None
            reason = completion.finish_reason if position == last else None
            tokens.append(self._token(token_id, logprobs, reason))
        if completion.finish_reason is not None and not self.is_over:
            tokens.append(self._end_without_token(completion))
        return tokens

    @property
    def wants_logprobs(self) -> bool:
        """Whether the request asks for them."""
        return self._shown is not None

    def end(self, reason: FinishReason, error: MindserveError | None = None) -> Token:
        """It ends here, without a token."""
        self.is_over = True
        return Token(finish_reason=reason, cumulative_logprob=self._cumulative, error=error)

    def read_start(self, output: Output) -> None:
        """What its first message tells about its scheduling."""
        self.cached_tokens = output.num_cached_tokens or 0
        timing = output.metrics
        is_timed = timing is not None and timing.scheduled_ts > 0 < timing.queued_ts
        wait_s = timing.scheduled_ts - timing.queued_ts if timing is not None and is_timed else 0.0
        self.queue_wait_us = max(0, round(1e6 * wait_s))

    def _token(self, token_id: int, logprobs: Mapping[int, Logprob] | None, reason: str | None) -> Token:
        self._generated += 1
        entry = None
        if logprobs is not None:
            entry = token_logprob(token_id, logprobs, shown=self._shown or 0)
            self._cumulative += entry.logprob
        finish = self._finish(token_id, reason)
        self.is_over = finish is not None
        return Token(
            token_id=token_id,
            logprob=entry if self.wants_logprobs else None,
            finish_reason=finish,
            cumulative_logprob=self._cumulative,
        )

    def _finish(self, token_id: int, reason: str | None) -> FinishReason | None:
        """LENGTH wins over STOP when both happen on one token; vLLM says it the other way round."""
        if self._generated >= self._frame.max_new_tokens:
            return FinishReason.LENGTH
        if token_id in self._frame.end_token_ids:
            return FinishReason.STOP
        return None if reason is None else _REASONS.get(reason)

    def _end_without_token(self, completion: Completion) -> Token:
        """Nobody asked for it: a cancelled sequence is not read any more."""
        error = EngineFailure(f"The engine gave up the request ({completion.finish_reason}).")
        return self.end(FinishReason.ERROR, error)


def token_logprob(token_id: int, logprobs: Mapping[int, Logprob], *, shown: int) -> TokenLogprob:
    """The entry has the chosen token too where it is not among the best, with a rank behind theirs."""
    rivals = sorted((one.rank or shown + 1, i, one.logprob) for i, one in logprobs.items())
    top = tuple((i, _known(value)) for rank, i, value in rivals if rank <= shown)
    return TokenLogprob(logprob=_known(logprobs[token_id].logprob), top=top)


def _known(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOGPROB_OF_EXCLUDED
