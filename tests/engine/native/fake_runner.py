"""A runner without a model: it stores token ids in its blocks and makes logits from what it finds there.

Every row's logits are a function of the whole history as the block table tells it, so a wrong table, a lost copy or a
prefix used wrongly changes the tokens. Slots that nobody wrote, and two sequences that write one slot, are errors.
"""

from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.base import ModelInfo
from mindserve.engine.native.step import BLOCK_SIZE, CANDIDATES, Adapters, StepBatch, Towers
from mindserve.errors import EngineFailure


@dataclass(frozen=True, kw_only=True)
class FakeOutput:
    """Candidates and log-sum-exp as a graph would compute them."""

    best_ids: NDArray[np.int32]
    candidate_ids: NDArray[np.int32]
    candidate_logits: NDArray[np.float32]
    log_sum_exp: NDArray[np.float32]
    logits: NDArray[np.float32]


def output_of(logits: NDArray[np.float32], inverse_temperature: NDArray[np.float32]) -> FakeOutput:
    """What the model would hand out for these rows. Tied candidates come highest id first, to be unhelpful."""
    rows, vocab = logits.shape
    order = np.stack([np.lexsort((-np.arange(vocab), -row)) for row in logits]) if rows else np.zeros((0, vocab), int)
    ids = order[:, :CANDIDATES].astype(np.int32)
    scaled = logits * inverse_temperature[:, None]
    best = scaled.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        log_sum_exp = np.log(np.exp(scaled - best).sum(axis=1, dtype=np.float32)) + best[:, 0]
    return FakeOutput(
        best_ids=logits.argmax(axis=1).astype(np.int32),
        candidate_ids=ids,
        candidate_logits=np.take_along_axis(logits, ids.astype(np.int64), axis=1),
        log_sum_exp=log_sum_exp.astype(np.float32),
        logits=logits,
    )


@dataclass
class FakeRunner:
    """See above."""

    block_count: int = 64
    vocab_size: int = 200
    spread: float = 3.0
    fails_at: set[int] = field(default_factory=set)
    """Steps that raise."""
    nan_after: tuple[int, ...] | None = None
    """History whose logits are NaN."""
    steps: int = 0
    token_counts: list[int] = field(default_factory=list)
    is_closed: bool = False
    adapters: Adapters | None = None
    towers: Towers | None = None

    def __post_init__(self) -> None:
        self.slots = np.full((self.block_count, BLOCK_SIZE), -1, np.int64)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        for source, target in pairs:
            self.slots[target] = self.slots[source]

    def step(self, batch: StepBatch) -> FakeOutput:
        self.steps += 1
        if self.steps in self.fails_at:
            raise EngineFailure("the fake failed as it was told")
        self.token_counts.append(len(batch.token_ids))
        written: set[tuple[int, int]] = set()
        rows = {int(row): i for i, row in enumerate(batch.sample_rows)}
        logits = np.zeros((len(rows), self.vocab_size), np.float32)
        begins, table_begins = batch.subsequence_begins, batch.block_indices_begins
        longest = 0
        for s, past in enumerate(batch.past_lens):
            table = batch.block_indices[table_begins[s] : table_begins[s + 1]]
            for row in range(begins[s], begins[s + 1]):
                position = int(batch.positions[..., row].flat[0])
                assert position == past + row - begins[s]
                slot = (int(table[position // BLOCK_SIZE]), position % BLOCK_SIZE)
                assert slot not in written, "two tokens in one slot"
                written.add(slot)
                self.slots[slot] = self._content(batch, row)
                longest = max(longest, position + 1)
                if row in rows:
                    logits[rows[row]] = self.logits_after(self._read(table, position + 1))
        assert batch.max_context_len == longest
        return output_of(logits, batch.inverse_temperature)

    def _content(self, batch: StepBatch, row: int) -> int:
        """What stands for media is known by the first number of its embedding."""
        if batch.embeddings is None or batch.is_embedded is None or not batch.is_embedded[row]:
            return int(batch.token_ids[row])
        return int(batch.embeddings[row, 0])

    def _read(self, table: NDArray[np.int32], length: int) -> tuple[int, ...]:
        history = self.slots[table].reshape(-1)[:length]
        assert len(history) == length
        assert (history >= 0).all(), "a slot that nobody wrote"
        return tuple(history.tolist())

    def logits_after(self, history: tuple[int, ...]) -> NDArray[np.float32]:
        """[vocab_size] a function of the history alone."""
        if history == self.nan_after:
            return np.full(self.vocab_size, np.nan, np.float32)
        digest = blake2b(np.array(history, np.int64).tobytes(), digest_size=8).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "little"))
        return (rng.standard_normal(self.vocab_size) * self.spread).astype(np.float32)

    def close(self) -> None:
        self.is_closed = True


def fake_info(*, vocab_size: int = 200, eos: frozenset[int] = frozenset(), max_context_len: int = 4096) -> ModelInfo:
    """Facts about the fake."""
    return ModelInfo(model_type="fake", vocab_size=vocab_size, max_context_len=max_context_len, eos_token_ids=eos)
