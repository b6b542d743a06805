"""What the steps have to say, collected until it is taken."""

from collections.abc import Sequence as Many
from typing import TypeAlias

from mindserve.engine.base import FinishReason, StepInfo, TokenEvent
from mindserve.engine.beam import Hypothesis
from mindserve.engine.native.sampling.sampler import Sampled
from mindserve.engine.native.sequence import Sequence
from mindserve.errors import MindserveError

Events: TypeAlias = dict[int, list[TokenEvent]]
"""Request number -> what one or more steps brought."""


class Outbox:
    """Makes events and keeps them."""

    def __init__(self) -> None:
        self._events: Events = {}

    def take(self) -> Events:
        """The events since the last call."""
        events, self._events = self._events, {}
        return events

    def tokens(
        self,
        sequence: Sequence,
        sampled: Many[Sampled],
        info: StepInfo,
        *,
        reason: FinishReason | None = None,
        error: MindserveError | None = None,
    ) -> None:
        """A sequence's new tokens, none where it ends without one."""
        logprobs = None
        if sequence.active.request.sampling.logprobs is not None and sampled:
            logprobs = tuple(one.logprob for one in sampled if one.logprob is not None)
        event = TokenEvent(
            index=sequence.index,
            token_ids=tuple(one.token_id for one in sampled if one.token_id is not None),
            step=info,
            logprobs=logprobs,
            finish_reason=reason,
            cached_tokens=sequence.active.cached_tokens or 0,
            cumulative_logprob=sequence.cumulative_logprob,
            error=error,
        )
        self._events.setdefault(sequence.active.number, []).append(event)

    def hypothesis(self, sequence: Sequence, hypothesis: Hypothesis, info: StepInfo) -> None:
        """All of a finished hypothesis, as the sequence that stands for it."""
        active = sequence.active
        event = TokenEvent(
            index=sequence.index,
            token_ids=hypothesis.token_ids,
            step=info,
            logprobs=None if active.request.sampling.logprobs is None else hypothesis.logprobs,
            finish_reason=hypothesis.reason,
            cached_tokens=active.cached_tokens or 0,
            cumulative_logprob=hypothesis.score,
        )
        self._events.setdefault(active.number, []).append(event)

    def refusal(self, number: int, n: int, error: MindserveError, info: StepInfo) -> None:
        """The ends of all sequences of a request that never ran."""
        ends = [
            TokenEvent(index=index, token_ids=(), step=info, finish_reason=FinishReason.ERROR, error=error)
            for index in range(n)
        ]
        self._events.setdefault(number, []).extend(ends)
