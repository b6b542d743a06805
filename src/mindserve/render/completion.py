"""The full answer: a fold of the same events that a stream would have sent."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mindserve.contract.request import ChatRequest
from mindserve.output.events import ChoiceUsage, LogprobEntry, OutputEvent, ToolCallDelta
from mindserve.render.wire import Envelope, encode, logprobs_object, total_usage, usage_object
from mindserve.settings.values import ApiMode


def ranks_choices(request: ChatRequest) -> bool:
    """Whether the choices come best first: more are generated than the request's `n` (decisions: n with best_of)."""
    return not request.use_beam_search and (request.best_of or 1) > (request.n or 1)


@dataclass(slots=True, kw_only=True)
class ToolCall:
    """One call, growing."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class ChoiceFold:
    """One choice, growing."""

    content: list[str] = field(default_factory=list[str])
    reasoning: list[str] | None = None
    """None: no reasoning parser ran, the message has no such key."""
    calls: dict[int, ToolCall] = field(default_factory=dict[int, ToolCall])
    logprobs: list[LogprobEntry] | None = None
    finish_reason: str | None = None
    usage: ChoiceUsage | None = None

    def feed(self, event: OutputEvent) -> None:
        """Take in the choice's next event."""
        self.content.append(event.content)
        if event.reasoning is not None:
            self.reasoning = self.reasoning or []
            self.reasoning.append(event.reasoning)
        for delta in event.tool_calls:
            self._feed_call(delta)
        if event.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs.extend(event.logprobs)
        self.finish_reason = event.finish_reason
        self.usage = event.usage

    def _feed_call(self, delta: ToolCallDelta) -> None:
        call = self.calls.setdefault(delta.index, ToolCall())
        call.id = delta.id or call.id
        call.name = delta.name or call.name
        call.arguments += delta.arguments


class Completion:
    """Collects the events of one request and renders its `chat.completion`."""

    def __init__(self, envelope: Envelope, *, best_first: bool = False) -> None:
        """`best_first`: choices in the order of their cumulative log-probability (`ranks_choices`)."""
        self._envelope = envelope
        self._best_first = best_first
        self._folds: dict[int, ChoiceFold] = {}

    def feed(self, events: Iterable[OutputEvent]) -> None:
        """Take in the next step's events."""
        for event in events:
            self._folds.setdefault(event.index, ChoiceFold()).feed(event)

    def render(self) -> bytes:
        """The answer's JSON; every choice must have ended."""
        folds = [fold for _, fold in sorted(self._folds.items())]
        if self._best_first:
            folds.sort(key=_cumulative_logprob, reverse=True)
        mode = self._envelope.mode
        usage = total_usage(fold.usage for fold in folds if fold.usage is not None)
        answer = self._envelope.head("chat.completion")
        answer["choices"] = [_choice(fold, index=index, mode=mode) for index, fold in enumerate(folds)]
        answer["usage"] = usage_object(usage, mode)
        if mode is ApiMode.VLLM:
            answer["prefill_time"] = usage.prefill_ms
            answer["decode_time_arr"] = usage.decode_ms
        return encode(answer)


def _cumulative_logprob(fold: ChoiceFold) -> float:
    return fold.usage.cumulative_logprob if fold.usage else float("-inf")


def _choice(fold: ChoiceFold, *, index: int, mode: ApiMode) -> dict[str, Any]:
    return {
        "index": index,
        "message": _message(fold, mode),
        "logprobs": logprobs_object(fold.logprobs),
        "finish_reason": fold.finish_reason,
    }


def _message(fold: ChoiceFold, mode: ApiMode) -> dict[str, Any]:
    """vLLM mode: content a string, `tool_calls` always. Native mode: content null beside calls, no empty list."""
    is_native = mode is ApiMode.NATIVE
    content = "".join(fold.content)
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if is_native and fold.calls and not content:
        message["content"] = None
    if fold.reasoning is not None:
        message["reasoning_content"] = "".join(fold.reasoning)
    if fold.calls or not is_native:
        message["tool_calls"] = [_call(call) for _, call in sorted(fold.calls.items())]
    return message


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "function": {"arguments": call.arguments, "name": call.name},
        "id": call.id,
        "type": "function",
    }
