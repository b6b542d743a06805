"""Where the thought begins and ends, and how many tokens it has."""

from bisect import bisect_left

from mindserve.output.plan import ThoughtPlan, ThoughtStart
from mindserve.output.source import Source, partial_length
from mindserve.text.base import Tokenizer


class ThoughtTracker:
    """Watches the tokens of one choice until its thought is over.

    Only the first closing tag counts. Where the vocabulary has a token for it, text that merely spells the tag is part
    of the thought. Without any closing tag everything is thought.
    """

    def __init__(self, plan: ThoughtPlan, tokenizer: Tokenizer) -> None:
        self.is_open = plan.start is not ThoughtStart.NONE
        """Whether text that is still to be read may be thought."""
        self._format = plan.format
        self._closing_id = tokenizer.token_id(plan.format.closing)
        self._must_open = plan.start is ThoughtStart.IF_OPENED
        self._length = 0
        self._starts: list[int] = []
        """Position of each token's text."""
        self._head = ""
        """The first characters, as long as they may become the opening tag."""
        self._tail = ""
        """The last characters, as long as they may become the closing tag."""
        self._begin: int | None = None
        """Where the thought's text begins, once it is known."""
        self._end = None if self.is_open else 0
        """Where the closing tag begins, once it has come."""

    @property
    def tokens(self) -> int:
        """Tokens that began before the closing tag, a generated opening tag included."""
        if self._begin is None and self._must_open:
            return 0
        return len(self._starts) if self._end is None else bisect_left(self._starts, self._end)

    def feed(self, token_id: int, text: str) -> None:
        """See one token and the text that it completed, before any other stage does."""
        if self._end is not None:
            return
        self._starts.append(self._length)
        self._length += len(text)
        if self._begin is None:
            self._find_opening(text)
        if self._closing_id is None:
            self._find_closing(text)
        elif token_id == self._closing_id and self._end is None:
            self._end = self._length - min(len(text), len(self._format.closing))

    def read(self, source: Source, *, is_final: bool) -> str:
        """Take the thought's text out of `source` as far as it is certain, and its tags without a trace."""
        if self._begin is None:
            if is_final:
                self._begin_at(0)
            if self._begin is None or not self.is_open:
                return ""
        self._drop_until(source, self._begin or 0)
        thought = source.take(
            min(max(self._certain_end(source, is_final=is_final) - source.start, 0), len(source.text))
        )
        self._read_closing(source, is_final=is_final)
        return thought

    def _find_opening(self, text: str) -> None:
        opening, self._head = self._format.opening, self._head + text
        if self._head.startswith(opening):
            self._begin_at(len(opening))
        elif not opening.startswith(self._head):
            self._begin_at(0)

    def _begin_at(self, position: int) -> None:
        self._begin = position
        if self._must_open and position == 0:
            self.is_open, self._end = False, 0

    def _find_closing(self, text: str) -> None:
        closing, recent = self._format.closing, self._tail + text
        found = recent.find(closing)
        if found >= 0 and self._end is None:
            self._end = self._length - len(recent) + found
        held = partial_length(recent, (closing,))
        self._tail = recent[len(recent) - held :]

    def _certain_end(self, source: Source, *, is_final: bool) -> int:
        if self._end is not None:
            return self._end
        return source.start + len(source.text) if is_final else self._length - len(self._tail)

    def _read_closing(self, source: Source, *, is_final: bool) -> None:
        length = len(self._format.closing)
        if source.start == self._end and (is_final or len(source.text) >= length):
            source.drop(min(length, len(source.text)))
            self.is_open = False

    @staticmethod
    def _drop_until(source: Source, position: int) -> None:
        if source.start < position:
            source.drop(min(position - source.start, len(source.text)))
