"""One running generation, and the request it belongs to."""

from dataclasses import replace
from enum import Enum, auto

from mindserve.engine.base import FinishReason, GenerateRequest
from mindserve.engine.native.blocks import PrefixHasher
from mindserve.engine.native.media import RequestMedia
from mindserve.engine.native.sampling.state import SamplerState
from mindserve.engine.native.speculate import Drafter, can_draft


class Status(Enum):
    """Where a sequence is."""

    UNBORN = auto()
    """A sibling that waits for the first sequence's prefill, whose blocks and tokens it will share."""
    WAITING = auto()
    """Holds no blocks: new, or preempted."""
    RUNNING = auto()
    PARKED = auto()
    """A beam that is ahead of others of its request: holds no blocks, and waits for them."""
    FINISHED = auto()


class Sequence:
    """Tokens and blocks of one generation. `computed` tokens have their keys and values in the blocks; whenever it
    reaches the last token, the logits after that token are known and the next one is chosen."""

    def __init__(self, active: "ActiveRequest", index: int, *, sampler: SamplerState | None = None) -> None:
        self.active = active
        self.index = index
        self.status = Status.UNBORN
        self.tokens: list[int] = []
        self.computed = 0
        self.blocks: list[int] = []
        self.keys: list[bytes] = []
        """Keys of its first full blocks."""
        self.registered = 0
        """How many of its blocks the prefix cache knows."""
        self.sampler = sampler or SamplerState(active.request, index)
        self.cumulative_logprob = 0.0
        self.drafter = Drafter(active.max_draft) if active.max_draft > 0 else None

    @property
    def order(self) -> tuple[int, int]:
        """Age, oldest first: by request, then by index."""
        return (self.active.number, self.index)

    @property
    def pending(self) -> int:
        """Tokens that are not in the blocks yet; 1 while decoding."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        """New tokens so far."""
        return len(self.tokens) - len(self.active.request.prompt_token_ids)

    def inherit(self, parent: "Sequence") -> None:
        """Stand where `parent` stands: same tokens, same blocks (whose references the caller counts)."""
        self.tokens = list(parent.tokens)
        self.computed = parent.computed
        self.blocks = list(parent.blocks)
        self.keys = list(parent.keys)
        self.registered = parent.registered

    def propose(self, limit: int, *, chance: float) -> tuple[int, ...]:
        """A draft of the tokens after the last one, each as probable as `chance`; never beyond the last allowed token
        but one."""
        limit = min(limit, self.active.max_new_tokens - self.generated - 1)
        return () if self.drafter is None else self.drafter.propose(self.tokens, limit, chance=chance)

    def forget_blocks(self) -> list[int]:
        """Hold no blocks any more; returns those that it held."""
        blocks, self.blocks = self.blocks, []
        self.computed = self.registered = 0
        return blocks

    def append(self, token_id: int) -> FinishReason | None:
        """Add a generated token; LENGTH wins over STOP when both happen on one token."""
        self.tokens.append(token_id)
        if self.generated >= self.active.max_new_tokens:
            return FinishReason.LENGTH
        return FinishReason.STOP if token_id in self.active.end_token_ids else None


class ActiveRequest:
    """A request in the engine, with its sequences and its clock."""

    def __init__(
        self,
        request: GenerateRequest,
        *,
        number: int,
        arrival_s: float,
        max_new_tokens: int,
        eos_token_ids: frozenset[int],
        max_draft: int = 0,
    ) -> None:
        self.hasher = PrefixHasher(adapter=request.adapter, media=request.media)
        self.media: RequestMedia | None = None
        """What the towers made of the request's media, once they have."""
        self.request = _without_features(request) if request.media else request
        self.number = number
        """Counts requests in the order of their arrival."""
        self.max_new_tokens = max_new_tokens
        self.max_draft = max_draft if can_draft(request) else 0
        sampling = request.sampling
        self.end_token_ids = sampling.stop_token_ids if sampling.ignore_eos else sampling.stop_token_ids | eos_token_ids
        self.ready_since_s = arrival_s
        """Arrival, or when the latest result was there."""
        self.scheduled_at_s: float | None = None
        """First scheduling since then."""
        self.cached_tokens: int | None = None
        """Prompt tokens found in the prefix cache; None before the first scheduling."""
        self.sequences = [Sequence(self, index) for index in range(request.n)]
        self.sequences[0].tokens = list(request.prompt_token_ids)

    def end_wait(self, time_s: float) -> float:
        """A result is there: the seconds that the request had waited to be scheduled for it."""
        wait_s = (self.scheduled_at_s or self.ready_since_s) - self.ready_since_s
        self.ready_since_s, self.scheduled_at_s = time_s, None
        return wait_s

    @property
    def is_beam_search(self) -> bool:
        """Whether `sequences` stand for hypotheses, and beams run in their place."""
        return self.request.use_beam_search

    @property
    def unfinished(self) -> list[Sequence]:
        """Sequences without a terminal event so far."""
        return [sequence for sequence in self.sequences if sequence.status is not Status.FINISHED]


def _without_features(request: GenerateRequest) -> GenerateRequest:
    """Only the towers need them, and they are large."""
    return replace(request, media=tuple(replace(item, features={}) for item in request.media))
