"""One sequence that follows its script as far as masks, stop tokens and lengths allow."""

from collections.abc import Callable

from mindserve.engine.base import FinishReason, GenerateRequest, TokenMask


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
