"""Masks that let a model write freely until something happens: the end of its thought, or the beginning of a call.

They implement `engine.base.TokenMask`. Nothing here raises: a token that does not fit is the grammar's business, which
then allows nothing but an end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.base import TokenMask
from mindserve.output.lexicon import Lexicon

Bits = NDArray[np.uint32]


class Constraint(TokenMask, Protocol):
    """A mask that can be asked ahead."""

    @property
    def is_done(self) -> bool:
        """Whether nothing but an end may follow."""
        ...

    def accepts(self, token_ids: Sequence[int]) -> bool:
        """Whether these tokens may come next."""
        ...

    def fork(self) -> "Constraint":
        """An independent copy in the same state."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """A text that changes what is allowed."""

    text: bytes
    token_id: int | None = None
    """Where set, only this token counts."""
    token_ids: tuple[int, ...] = ()
    """How a model writes it."""
    is_at_start: bool = False
    """Whether it counts only as the text's beginning, whitespace aside."""


class TagWatcher:
    """Looks for a tag in one sequence."""

    def __init__(self, tag: Tag, lexicon: Lexicon) -> None:
        self.tag = tag
        self.is_over = False
        """Whether the tag can no longer come."""
        self._lexicon = lexicon
        self.seen = b""
        """The end of the text so far, as long as it may begin the tag."""

    def advance(self, token_id: int) -> bytes | None:
        """What follows the tag within the token that completes it; None as long as it is not complete."""
        if self.is_over:
            return None
        if self.tag.token_id is not None:
            return b"" if token_id == self.tag.token_id else None
        text = self.seen + token_text(self._lexicon, token_id)
        if self.tag.is_at_start:
            return self._advance_start(text.lstrip())
        _, found, rest = text.partition(self.tag.text)
        if found:
            return rest
        lengths = range(min(len(text), len(self.tag.text) - 1), 0, -1)
        self.seen = next((text[-n:] for n in lengths if self.tag.text.startswith(text[-n:])), b"")
        return None

    def _advance_start(self, text: bytes) -> bytes | None:
        self.seen = text
        self.is_over = not self.tag.text.startswith(text)
        return text[len(self.tag.text) :] if text.startswith(self.tag.text) else None

    def completions(self) -> list[tuple[int, bytes]]:
        """Tokens that would complete the tag and go on, with what follows it."""
        if self.is_over or self.tag.token_id is not None:
            return []
        return list(self._lexicon.starting_with(self.tag.text[len(self.seen) :]))

    def copy(self) -> "TagWatcher":
        """An independent copy in the same state."""
        other = TagWatcher(self.tag, self._lexicon)
        other.seen, other.is_over = self.seen, self.is_over
        return other


def token_text(lexicon: Lexicon, token_id: int) -> bytes:
    """The bytes that a token adds to the text."""
    is_text = token_id < len(lexicon.tokens) and token_id not in lexicon.special_ids
    return lexicon.tokens[token_id] if is_text else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtRule:
    """What is enforced about a thought."""

    opening: Tag | None
    """Set where the model may answer without a thought; None: the output begins inside one."""
    closing: Tag
    budget_tokens: int | None = None
    forced_ids: tuple[int, ...] = ()
    """What follows when the budget is used up: the early stopping text, and the closing tag."""


@dataclass(slots=True)
class _Free:
    """What is allowed while a tag is awaited; kept for all sequences of a request."""

    bits: dict[bytes, Bits | None] = field(default_factory=dict[bytes, "Bits | None"])


class ThoughtMask:
    """Free until the thought's end, which comes by force when its budget is used up; then another constraint."""

    def __init__(self, rule: ThoughtRule, lexicon: Lexicon, after: Constraint | None) -> None:
        self._rule = rule
        self._lexicon = lexicon
        self._after = after
        self._closing = TagWatcher(rule.closing, lexicon)
        self._head: bytes | None = b"" if rule.opening else None
        """The text so far, as long as it may become the opening tag."""
        self._answer = after.fork() if after and rule.opening else None
        """Follows the first tokens as if there were no thought."""
        self._is_thinking = True
        self._spent = 0
        self._forced: tuple[int, ...] = ()
        self._free = _Free()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as it begins."""
        return ThoughtMask, (self._rule, self._lexicon, self._after)

    def allowed(self) -> Bits | None:
        """See TokenMask."""
        if self._forced:
            return self._lexicon.bits(self._forced[:1])
        if not self._is_thinking:
            return self._after.allowed() if self._after else None
        if self._after is None:
            return None
        return self._allowed_at_start() if self._head is not None else self._allowed_in_thought(self._after)

    def advance(self, token_id: int) -> None:
        """See TokenMask."""
        if self._forced:
            self._forced = self._forced[1:]
            self._is_thinking = bool(self._forced)
        elif not self._is_thinking:
            if self._after:
                self._after.advance(token_id)
        elif self._head is not None:
            self._open(self._head, token_id)
        else:
            self._think(token_id)

    def fork(self) -> "ThoughtMask":
        """See TokenMask."""
        other = ThoughtMask(self._rule, self._lexicon, self._after.fork() if self._after else None)
        other._closing = self._closing.copy()
        other._head, other._is_thinking, other._spent = self._head, self._is_thinking, self._spent
        other._answer = self._answer.fork() if self._answer else None
        other._forced, other._free = self._forced, self._free
        return other

    def _open(self, head: bytes, token_id: int) -> None:
        """Before it is clear whether there is a thought."""
        self._spent += 1
        opening = self._rule.opening.text if self._rule.opening else b""
        head += token_text(self._lexicon, token_id)
        if self._answer:
            self._answer.advance(token_id)
        if head.startswith(opening):
            self._head, self._answer = None, None
        elif opening.startswith(head):
            self._head = head
        else:
            self._is_thinking, self._head = False, None
            self._after, self._answer = self._answer, None

    def _think(self, token_id: int) -> None:
        self._spent += 1
        rest = self._closing.advance(token_id)
        if rest is not None:
            self._is_thinking = False
            self._begin_answer(rest)
        elif self._is_over_budget() and not self._closing.seen:  # a tag that has begun may end the thought itself
            self._forced = self._rule.forced_ids

    def _is_over_budget(self) -> bool:
        return self._rule.budget_tokens is not None and self._spent >= self._rule.budget_tokens

    def _begin_answer(self, text: bytes) -> None:
        if self._after:
            for token_id in self._lexicon.encode_bytes(text):
                self._after.advance(token_id)

    def _allowed_at_start(self) -> Bits | None:
        answer = self._answer.allowed() if self._answer else None
        if answer is None or self._rule.opening is None:
            return None
        missing = self._lexicon.encode_bytes(self._rule.opening.text[len(self._head or b"") :])
        return answer | self._lexicon.bits((missing if self._head else self._rule.opening.token_ids)[:1])

    def _allowed_in_thought(self, after: Constraint) -> Bits | None:
        """No token that would end the thought and begin the answer wrongly, and no end where an answer must come."""
        seen = self._closing.seen
        if seen not in self._free.bits:
            refused = refused_completions(self._closing, after, self._lexicon)
            ends = [token_id for token_id in self._lexicon.end_token_ids if not after.accepts([token_id])]
            self._free.bits[seen] = self._lexicon.bits_without([*refused, *ends])
        return self._free.bits[seen]


def refused_completions(
    watcher: TagWatcher, after: Constraint, lexicon: Lexicon, *, before: tuple[int, ...] = ()
) -> list[int]:
    """Tokens that complete the tag and go on with what `after` does not allow, `before` in front of it."""
    candidates = ((token_id, lexicon.encode_bytes(rest)) for token_id, rest in watcher.completions())
    return [token_id for token_id, rest in candidates if not after.accepts([*before, *rest])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """A text that begins a call, and what holds from its first character to the call's last."""

    tag: Tag
    call: Constraint


class CallMask:
    """Free until a call begins; then that call's grammar, and free again."""

    def __init__(self, triggers: Sequence[Trigger], lexicon: Lexicon) -> None:
        self._lexicon = lexicon
        self._watched = [(trigger, TagWatcher(trigger.tag, lexicon)) for trigger in triggers]
        self._call: Constraint | None = None
        self._free = _Free()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as it begins."""
        return CallMask, ([trigger for trigger, _ in self._watched], self._lexicon)

    is_done = False

    def accepts(self, token_ids: Sequence[int]) -> bool:
        """Anything may come where nothing has begun."""
        return self._call is None or self._call.accepts(token_ids)

    def allowed(self) -> Bits | None:
        """See TokenMask."""
        if self._call:
            return self._call.allowed()
        seen = b"\0".join(bytes([watcher.is_over]) + watcher.seen for _, watcher in self._watched)
        if seen not in self._free.bits:
            refused = self._refused()
            self._free.bits[seen] = self._lexicon.bits_without(refused) if refused else None
        return self._free.bits[seen]

    def advance(self, token_id: int) -> None:
        """See TokenMask."""
        if self._call:
            self._call.advance(token_id)
            if self._call.is_done:
                self._call = None
            return
        for trigger, watcher in self._watched:
            rest = watcher.advance(token_id)
            if rest is not None:
                self._begin(trigger, rest)
                return

    def fork(self) -> "CallMask":
        """See TokenMask."""
        other = CallMask((), self._lexicon)
        other._watched = [(trigger, watcher.copy()) for trigger, watcher in self._watched]
        other._call = self._call.fork() if self._call else None
        other._free = self._free
        return other

    def _begin(self, trigger: Trigger, rest: bytes) -> None:
        self._call = trigger.call.fork()
        for token_id in (*trigger.tag.token_ids, *self._lexicon.encode_bytes(rest)):
            self._call.advance(token_id)
        for _, watcher in self._watched:
            watcher.seen, watcher.is_over = b"", watcher.tag.is_at_start

    def _refused(self) -> list[int]:
        return [
            token_id
            for trigger, watcher in self._watched
            for token_id in refused_completions(watcher, trigger.call, self._lexicon, before=trigger.tag.token_ids)
        ]
