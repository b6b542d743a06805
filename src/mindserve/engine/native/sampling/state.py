"""What the sampler keeps for one sequence from token to token."""

from collections.abc import Iterable
from copy import copy

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.base import GenerateRequest, SamplingParams
from mindserve.engine.native.sampling.draw import UNLIMITED
from mindserve.engine.seeds import generator_of

MIN_TEMPERATURE = 1e-6
"""Smaller temperatures than this differ from it in nothing but overflows."""
MAX_UNIFORM = 1 - 2.0**-52
"""Keeps the product with any total strictly below that total."""
UNIFORMS_AT_ONCE = 64


class Penalties:
    """The tokens whose logits the penalties change, with how often each was generated."""

    def __init__(self, sampling: SamplingParams, prompt_token_ids: Iterable[int]) -> None:
        self._repetition = sampling.repetition_penalty
        self._frequency = sampling.frequency_penalty
        self._presence = sampling.presence_penalty
        self._slots: dict[int, int] = {}
        self._ids = np.zeros(256, np.int64)
        self._counts = np.zeros(256)
        if self._repetition != 1:
            for token_id in dict.fromkeys(prompt_token_ids):
                self._slot(token_id)

    @property
    def ids(self) -> NDArray[np.int64]:
        """[n] the tokens concerned, each once."""
        return self._ids[: len(self._slots)]

    def concerns(self, token_ids: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which of `token_ids` are among `ids`."""
        slots = self._slots
        return np.fromiter((i in slots for i in token_ids.tolist()), np.bool_, len(token_ids))

    def count(self, token_id: int) -> None:
        """Record a generated token."""
        slot = self._slot(token_id)  # may make room, in another array
        self._counts[slot] += 1

    def apply(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """[n] logits of `ids` -> what they are after the penalties."""
        counts = self._counts[: len(self._slots)]
        repeated = np.where(logits > 0, logits / self._repetition, logits * self._repetition)
        return repeated - self._frequency * counts - self._presence * (counts > 0)

    def fork(self) -> "Penalties":
        """An independent copy."""
        twin = copy(self)
        twin._slots, twin._ids, twin._counts = dict(self._slots), self._ids.copy(), self._counts.copy()
        return twin

    def _slot(self, token_id: int) -> int:
        slot = self._slots.setdefault(token_id, len(self._slots))
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[slot] = token_id
        return slot


class SamplerState:
    """Parameters, random numbers, penalties and mask of one sequence."""

    def __init__(self, request: GenerateRequest, index: int) -> None:
        sampling = request.sampling
        self.is_greedy = sampling.is_greedy or request.use_beam_search
        self.inverse_temperature = 1.0 if self.is_greedy else 1 / max(sampling.temperature, MIN_TEMPERATURE)
        self.top_k = UNLIMITED if self.is_greedy or sampling.top_k <= 0 else sampling.top_k
        self.top_p = 1.0 if self.is_greedy else sampling.top_p
        self.shown = sampling.logprobs
        """Candidates whose log-probabilities are reported; None: no log-probabilities at all."""
        if self.shown is None and request.n > 1:
            self.shown = 0  # the sequences are ranked by their cumulative log-probability
        self.mask = None if request.mask is None else request.mask.fork()
        is_penalised = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (1, 0, 0)
        self.penalties = Penalties(sampling, request.prompt_token_ids) if is_penalised else None
        self._generator = None if self.is_greedy else generator_of(sampling, index)
        self._uniforms: list[float] = []

    @property
    def takes_best(self) -> bool:
        """Whether the best of the model's own logits is taken and nothing else is asked for."""
        return self.is_greedy and self.shown is None and self.mask is None and self.penalties is None

    def next_uniform(self) -> float:
        """The number that decides the next token: one per token."""
        if self._generator is None:
            return 0.0
        if not self._uniforms:
            self._uniforms = np.minimum(self._generator.random(UNIFORMS_AT_ONCE), MAX_UNIFORM)[::-1].tolist()
        return self._uniforms.pop()

    def accept(self, token_id: int) -> None:
        """Record a generated token."""
        if self.penalties is not None:
            self.penalties.count(token_id)
        if self.mask is not None:
            self.mask.advance(token_id)

    def fork(self) -> "SamplerState":
        """An independent copy of a greedy state."""
        assert self._generator is None, "the copy would draw the same numbers"
        twin = copy(self)
        twin.penalties = None if self.penalties is None else self.penalties.fork()
        twin.mask = None if self.mask is None else self.mask.fork()
        return twin
