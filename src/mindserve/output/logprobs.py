"""Log-probabilities as the wire shows them: each token decoded alone, without its neighbours."""

from mindserve.engine.base import TokenLogprob
from mindserve.output.events import LogprobCandidate, LogprobEntry
from mindserve.text.base import Tokenizer


class LogprobReader:
    """Names the tokens of the engine's log-probabilities."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skip_special_tokens

    def read(self, token_id: int, logprob: TokenLogprob) -> LogprobEntry:
        """The entry of one generated token. A skipped special token shows as "", candidates always in full."""
        is_skipped = self._skips_special and self._tokenizer.is_special(token_id)
        text = "" if is_skipped else self._text(token_id)
        return LogprobEntry(
            token=text,
            logprob=logprob.logprob,
            bytes=tuple(text.encode()),
            top=tuple(self._candidate(rival, value) for rival, value in logprob.top),
        )

    def _candidate(self, token_id: int, logprob: float) -> LogprobCandidate:
        text = self._text(token_id)
        return LogprobCandidate(token=text, logprob=logprob, bytes=tuple(text.encode()))

    def _text(self, token_id: int) -> str:
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")
