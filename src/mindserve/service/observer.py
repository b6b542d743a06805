"""What the service tells whoever keeps metrics: one timeline per request, when it is over."""

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Outcome(StrEnum):
    """How a request ended."""

    FINISHED = "finished"
    """Every choice ended by itself."""
    STOPPED = "stopped"
    """By stopInfer, or because the server shut down."""
    ABANDONED = "abandoned"
    """The client left."""
    REFUSED = "refused"
    """Before the first token, for a reason that the request carries or by overload."""
    FAILED = "failed"
    """Engine failure or timeout."""


@dataclass(slots=True, kw_only=True)
class RequestTimeline:
    """Moments (`time.perf_counter()`, seconds) and counts of one request, filled in as it goes on."""

    request_id: str
    arrived_s: float = field(default_factory=time.perf_counter)
    admitted_s: float | None = None
    submitted_s: float | None = None
    """The prompt is built and handed to the engine."""
    first_token_s: float | None = None
    finished_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    """Over all sequences."""
    decode_ms: tuple[int, ...] = ()
    """Gaps between the tokens of the longest sequence."""
    outcome: Outcome | None = None


class Observer(Protocol):
    """Keeps metrics. Called on the event loop, so it must be quick."""

    def request_arrived(self, timeline: RequestTimeline) -> None:
        """A valid request has come."""
        ...

    def request_finished(self, timeline: RequestTimeline) -> None:
        """It is over, whatever way; called exactly once for each that arrived."""
        ...


class NullObserver:
    """Keeps nothing."""

    def request_arrived(self, timeline: RequestTimeline) -> None:
        """Ignore it."""

    def request_finished(self, timeline: RequestTimeline) -> None:
        """Ignore it."""
