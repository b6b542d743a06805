"""From a plan to the arrays of one forward pass."""

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.native.blocks import blocks_for
from mindserve.engine.native.scheduler import Plan, Scheduled
from mindserve.engine.native.step import StepBatch


def build_batch(plan: Plan) -> StepBatch:
    """Arrays for the plan's entries, in their order. An entry that reaches its last token has one sampled row there,
    and one for each token of its draft."""
    entries = plan.entries
    past = [entry.sequence.computed for entry in entries]
    counts = [entry.row_count for entry in entries]
    begins = _offsets(counts)
    tables = [e.sequence.blocks[: blocks_for(e.sequence.computed + e.row_count)] for e in entries]
    return StepBatch(
        token_ids=np.fromiter(chain.from_iterable(map(_tokens, entries)), np.int64, int(begins[-1])),
        positions=_positions(past, counts, begins),
        past_lens=np.array(past, np.int32),
        subsequence_begins=begins,
        block_indices=np.array(list(chain.from_iterable(tables)), np.int32),
        block_indices_begins=_offsets([len(table) for table in tables]),
        max_context_len=max(p + c for p, c in zip(past, counts, strict=True)),
        sample_rows=_sample_rows(entries, begins),
        inverse_temperature=np.array(
            [e.sequence.sampler.inverse_temperature for e in entries if e.is_sampled for _ in range(1 + len(e.draft))],
            np.float32,
        ),
    )


def _tokens(entry: Scheduled) -> list[int]:
    begin = entry.sequence.computed
    return [*entry.sequence.tokens[begin : begin + entry.count], *entry.draft]


def _sample_rows(entries: list[Scheduled], begins: NDArray[np.int32]) -> NDArray[np.int64]:
    ends = zip(entries, begins[1:].tolist(), strict=True)
    return np.array([end - 1 - i for e, end in ends if e.is_sampled for i in range(len(e.draft), -1, -1)], np.int64)


def _offsets(lengths: list[int]) -> NDArray[np.int32]:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _positions(past: list[int], counts: list[int], begins: NDArray[np.int32]) -> NDArray[np.int64]:
    shift = np.array(past, np.int64) - begins[:-1]
    return np.arange(begins[-1], dtype=np.int64) + np.repeat(shift, counts)
