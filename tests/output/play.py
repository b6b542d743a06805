"""Plays tokens through an assembler and folds what comes out, as the JSON answer does."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mindserve.engine.base import FinishReason
from mindserve.output.assembler import ChoiceAssembler
from mindserve.output.events import OutputEvent
from mindserve.output.plan import OutputPlan
from mindserve.text.base import Tokenizer


@dataclass
class Answer:
    """The fold of a choice's events."""

    content: str = ""
    reasoning: str | None = None
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish_reason: str | None = None


def fold(events: Iterable[OutputEvent]) -> Answer:
    """Put the events together; checks the order of a call's deltas and that nothing follows the end."""
    answer, call_ids = Answer(), []
    for event in events:
        assert answer.finish_reason is None, "an event after the last one"
        answer.content += event.content
        if event.reasoning is not None:
            answer.reasoning = (answer.reasoning or "") + event.reasoning
        for delta in event.tool_calls:
            if delta.id is not None:
                assert delta.index == len(answer.calls) and delta.name and delta.arguments == ""
                call_ids.append(delta.id)
                answer.calls.append((delta.name, ""))
            else:
                assert delta.name is None and delta.index == len(answer.calls) - 1
                name, arguments = answer.calls[delta.index]
                answer.calls[delta.index] = (name, arguments + delta.arguments)
        answer.finish_reason = event.finish_reason
    assert len(set(call_ids)) == len(call_ids)
    return answer


def play(
    plan: OutputPlan,
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    *,
    finish: FinishReason = FinishReason.STOP,
    end_token: int | None = None,
) -> tuple[list[OutputEvent], ChoiceAssembler]:
    """All tokens, then the end token; without one the finish comes with the last token, or alone."""
    assembler = ChoiceAssembler(plan, tokenizer=tokenizer, index=0)
    tokens = [*token_ids] if end_token is None else [*token_ids, end_token]
    events: list[OutputEvent] = []
    for at, token_id in enumerate(tokens):
        is_last = at == len(tokens) - 1 and (end_token is not None or finish is FinishReason.LENGTH)
        events.append(assembler.feed(token_id, finish=finish if is_last else None))
        if assembler.is_finished:
            return events, assembler
    return [*events, assembler.end(finish)], assembler
