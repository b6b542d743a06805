"""What a choice says, event by event. SSE chunks map these one to one; the JSON answer is their fold.

What is made for every token is a `msgspec.Struct`: a frozen dataclass takes ten times as long to make.
"""

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """A piece of one tool call: first id, type and name (arguments ""), then arguments (name and id None)."""

    index: int
    """Position among the choice's calls, from 0."""
    id: str | None = None
    """`call_` + 8 characters of [A-Za-z0-9]."""
    name: str | None = None
    arguments: str = ""


class LogprobCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A token and its log-probability as the wire shows it."""

    token: str
    logprob: float
    bytes: tuple[int, ...]


class LogprobEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One generated token (the end token included) and its candidates (contract: logprobs.content[])."""

    token: str
    logprob: float
    bytes: tuple[int, ...]
    top: tuple[LogprobCandidate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceUsage:
    """Counts and times of one sequence when it ended. Times: one entry per engine step of the request so far."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    """The end token and a stop string's own tokens included."""
    reasoning_tokens: int | None
    """None: the model does not think and the wire omits the object."""
    batch_sizes: tuple[int, ...]
    queue_waits_us: tuple[int, ...]
    prefill_ms: int
    decode_ms: tuple[int, ...]
    """Gaps between the steps: one entry less than `batch_sizes`."""
    cumulative_logprob: float = 0.0
    """Ranks the choices of `best_of` > `n`."""


class OutputEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What one generated token added to one choice (all of it at once for a beam hypothesis)."""

    index: int
    content: str = ""
    reasoning: str | None = None
    """None: nothing of the thought in this event."""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[LogprobEntry, ...] | None = None
    """None unless the request asked."""
    finish_reason: str | None = None
    """`stop`, `length` or `tool_calls`, on the choice's last event only."""
    usage: ChoiceUsage | None = None
    """On the choice's last event only."""
    full_text: str | None = None
    """The choice's whole content so far, when fullTextEnabled."""
