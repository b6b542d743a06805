"""One sequence that follows its script as far as masks, stop tokens and lengths allow."""

from collections.abc import Callable, Sequence

from mindserve.engine.base import FinishReason, GenerateRequest, TokenMask


class ScriptedSequence:
    """One sequence at its place in the script; with `ignore_eos` the script starts again behind its end."""

    def __init__(
        self,
        script: Sequence[int],
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
        self._ends = set(request.sampling.stop_token_ids)
        if not request.sampling.ignore_eos:
            self._ends.add(script[-1])
        self._mask = request.mask.fork() if request.mask else None
        self._choose = choose
        self.count = 0
        self.cumulative_logprob = 0.0
        self.finish_reason: FinishReason | None = None

    def next_token(self) -> int:
        """Generate one token; `finish_reason` tells whether it was the last."""
        token = wanted = self._script[self._place]
        if self._mask:
            token = self._choose(self, self._mask, wanted)
            self._mask.advance(token)
        if token == wanted:
            self._place = (self._place + 1) % len(self._script)
        self.count += 1
        self.cumulative_logprob += invented_logprob(token)
        if self.count >= self._max_tokens:
            self.finish_reason = FinishReason.LENGTH
        elif token in self._ends:
            self.finish_reason = FinishReason.STOP
        return token


def invented_logprob(token: int) -> float:
    """The log-probability that the engine reports for a token wherever it comes."""
    return -0.125 - (token % 8) / 8
