"""From a plan to the arrays of one forward pass."""

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.native.blocks import blocks_for
from mindserve.engine.native.scheduler import Plan
from mindserve.engine.native.step import StepBatch


def build_batch(plan: Plan) -> StepBatch:
    """Arrays for the plan's entries, in their order; one sampled row for every entry that reaches its last token."""
    entries = plan.entries
    past = [entry.sequence.computed for entry in entries]
    counts = [entry.count for entry in entries]
    begins = _offsets(counts)
    tables = [e.sequence.blocks[: blocks_for(e.sequence.computed + e.count)] for e in entries]
    sampled = [i for i, entry in enumerate(entries) if entry.is_sampled]
    tokens = chain.from_iterable(
        e.sequence.tokens[e.sequence.computed : e.sequence.computed + e.count] for e in entries
    )
    return StepBatch(
        token_ids=np.fromiter(tokens, np.int64, int(begins[-1])),
        positions=_positions(past, counts, begins),
        past_lens=np.array(past, np.int32),
        subsequence_begins=begins,
        block_indices=np.array(list(chain.from_iterable(tables)), np.int32),
        block_indices_begins=_offsets([len(table) for table in tables]),
        max_context_len=max(p + c for p, c in zip(past, counts, strict=True)),
        sample_rows=begins[1:][sampled].astype(np.int64) - 1,
        inverse_temperature=np.array([entries[i].sequence.sampler.inverse_temperature for i in sampled], np.float32),
    )


def _offsets(lengths: list[int]) -> NDArray[np.int32]:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _positions(past: list[int], counts: list[int], begins: NDArray[np.int32]) -> NDArray[np.int64]:
    shift = np.array(past, np.int64) - begins[:-1]
    return np.arange(begins[-1], dtype=np.int64) + np.repeat(shift, counts)
