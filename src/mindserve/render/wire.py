"""Objects that chunks and completions share, as plain dicts in the contract's key order, in both dialects."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from mindserve.output.events import ChoiceUsage, LogprobCandidate, LogprobEntry
from mindserve.settings.values import ApiMode

encode = msgspec.json.Encoder().encode
"""Compact, UTF-8 as it is, insertion order kept (contract: serialisation)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What every object of one answer repeats."""

    request_id: str
    created: int
    """Seconds; the request's time, the same in all chunks."""
    model: str
    """As the request named it."""
    mode: ApiMode = ApiMode.VLLM

    def head(self, kind: str) -> dict[str, Any]:
        """The first keys of every object; `kind` is its `object`."""
        return {"id": self.request_id, "object": kind, "created": self.created, "model": self.model}


def usage_object(usage: ChoiceUsage, mode: ApiMode) -> dict[str, Any]:
    """`usage` of an answer or of a choice's last chunk. Native mode has no timing arrays."""
    cached = {"cached_tokens": usage.cached_tokens}
    thought = {} if usage.reasoning_tokens is None else {"reasoning_tokens": usage.reasoning_tokens}
    total = usage.prompt_tokens + usage.completion_tokens
    if mode is ApiMode.NATIVE:
        wire: dict[str, Any] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": total,
            "prompt_tokens_details": cached,
        }
        return {**wire, "completion_tokens_details": thought} if thought else wire
    return {
        "prompt_tokens": usage.prompt_tokens,
        "prompt_tokens_details": cached,
        "completion_tokens": usage.completion_tokens,
        **({"completion_tokens_details": thought} if thought else {}),
        "total_tokens": total,
        "batch_size": usage.batch_sizes,
        "queue_wait_time": usage.queue_waits_us,
    }


def total_usage(usages: Iterable[ChoiceUsage]) -> ChoiceUsage:
    """All choices of a request together: the prompt once, generated tokens summed, the longest one's arrays."""
    each = list(usages)
    longest = max(each, key=lambda usage: len(usage.batch_sizes))
    thoughts = [usage.reasoning_tokens for usage in each if usage.reasoning_tokens is not None]
    return replace(
        longest,
        completion_tokens=sum(usage.completion_tokens for usage in each),
        reasoning_tokens=sum(thoughts) if thoughts else None,
    )


def logprobs_object(entries: Iterable[LogprobEntry] | None) -> dict[str, Any] | None:
    """`logprobs` of a choice; None (null) unless the request asked."""
    if entries is None:
        return None
    return {"content": [_entry(entry) for entry in entries]}


def _entry(entry: LogprobEntry) -> dict[str, Any]:
    return {**_candidate(entry), "top_logprobs": [_candidate(candidate) for candidate in entry.top]}


def _candidate(candidate: LogprobEntry | LogprobCandidate) -> dict[str, Any]:
    return {"token": candidate.token, "logprob": candidate.logprob, "bytes": candidate.bytes}
